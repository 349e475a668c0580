"""A process that compiles CuTe DSL kernels: one JSON request a line on stdin, one JSON answer a line on
stdout.

It exists because ``cute.compile`` is not thread-safe, and so that no process that launches kernels holds the
DSL. It is started as a file, not as a module of the package, so that it imports nothing but the DSL and the
kernel asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
import traceback
from base64 import b64encode
from typing import Any

# In the host code that the DSL generates: the field at index 2 of cudaLaunchConfig_t, dynamicSmemBytes.
_SHARED_FIELD = re.compile(
    r"(%\w+) = llvm\.getelementptr %\w+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, "
    r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>\s*llvm\.store (%\w+), \1 :"
)


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compile ``request["module"]:request["function"]`` for ``request["arch"]``."""
    import cutlass.cute as cute

    build = getattr(importlib.import_module(request["module"]), request["function"])
    start = time.process_time()  # of this process, whatever else the machine does
    function, arguments = build(request["config"], request["arch"])
    options = f"--gpu-arch {request['arch']} --keep-ptx --keep-cubin"
    compiled = cute.compile(function, *arguments, options=options)
    seconds = time.process_time() - start
    ptx = compiled.__ptx__
    return {
        "cubin": b64encode(compiled.__cubin__).decode(),
        "ptx": ptx.decode() if isinstance(ptx, bytes) else ptx,
        "shared_bytes": launch_shared_bytes(str(compiled.ir_module)),
        "seconds": seconds,
    }


def launch_shared_bytes(host_ir: str) -> int:
    """Dynamic shared memory that the DSL's own launch would ask for, from its generated host code.

    Raises:
        ValueError: there is not exactly one launch, or its size is not a constant.
    """
    stores = list(_SHARED_FIELD.finditer(host_ir))
    if len(stores) != 1:
        raise ValueError(f"expected one kernel launch in the host code, found {len(stores)}")
    # Value names are local to a function, so the definition that counts is the last one before the store.
    value, before = re.escape(stores[0][2]), host_ir[: stores[0].start()]
    definitions = re.findall(rf"{value} = ([^\n]*)", before)
    size = re.match(r"llvm\.mlir\.constant\((\d+) : i64\)", definitions[-1]) if definitions else None
    if size is None:
        raise ValueError("the size of the dynamic shared memory is not a constant")
    return int(size[1])


def main() -> None:
    # Whatever the DSL prints goes to stderr, so that stdout carries nothing but answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = compile_request(json.loads(line))
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
