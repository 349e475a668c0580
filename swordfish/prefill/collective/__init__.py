"""The mixed-input collective in CuTe DSL, one module per role. Only the compiler's worker process imports it.

No module here has ``from __future__ import annotations``: the DSL reads the annotations of its functions.
"""
