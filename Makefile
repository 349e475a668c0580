# make demo    a small real layer is packed, multiplied and checked, and its kernels are compiled
# make test    the tests
#
# Both set up a virtual environment in .venv first. They need Linux, Python 3.10 or newer, and network access for pip;
# tests of kernels also need a C++ compiler (for the emulator). A GPU is used if there is one.

PYTHON ?= python3
VENV ?= .venv

# The torch to install, from wherever pip is set up to look. The default build of the package index has CUDA and runs
# without a GPU as well; to save the download, point pip at a CPU build, or name a wheel: make test TORCH=...
TORCH ?= torch==2.13.0

# Arguments for pytest, for example PYTEST_ARGS="-k decode".
PYTEST_ARGS ?= -n auto --maxprocesses 4

PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
CUTE = $(VENV)/bin/python -c 'from importlib.metadata import version; print(version("nvidia-cutlass-dsl"))'

.PHONY: demo test install clean

demo: install
	$(VENV)/bin/swordfish demo

# The emulator's core is built first, so that parallel tests do not each build it.
test: install
	$(VENV)/bin/python -c 'from swordfish.emulator import native; native.build()'
	$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

install: $(VENV)/.installed

# The CUDA 12 and CUDA 13 libraries of the CuTe DSL are wheels that own the same files, and pip installs them in no
# particular order: the second install puts those of CUDA 13 on top. `swordfish doctor` tells which ones are active.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, see PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "$(TORCH)"
	$(PIP) install --quiet --editable ".[dev]"
	$(PIP) install --quiet --force-reinstall --no-deps "nvidia-cutlass-dsl-libs-cu13==$$($(CUTE))"
	touch $@

clean:
	rm -rf $(VENV)
