"""Compiles the CPU kernels into the wheel, where a C++ compiler is found; all else is in pyproject.toml.

A plain library behind a C interface needs no Python headers: one wheel serves every Python 3 of its platform.
Without a compiler, or with one that is too old, the wheel is pure Python and the server runs on PyTorch's
kernels.
"""

import importlib.util
import re
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_KERNELS = Path("seedance_server", "engine", "kernels")
_spec = importlib.util.spec_from_file_location("compiler", _KERNELS / "compiler.py")
compiler = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compiler)


class BuildWithKernels(build_py):
    """Copies the Python files, then compiles."""

    def run(self) -> None:
        """Setuptools' own step, then ours."""
        super().run()
        command = None if self.editable_mode else compiler.find_compiler()
        if command is None:
            return  # a checkout compiles when the kernels are first wanted
        library = Path(self.build_lib, _KERNELS, compiler.LIBRARY_NAME)
        try:
            compiler.build_library(command, _KERNELS, library)
        except compiler.CompilerError as error:
            self.warn(f"the wheel goes without the CPU kernels: {error}")


class WheelWithKernels(bdist_wheel):
    """Names the wheel after what is in it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        built = Path(self.bdist_dir, _KERNELS, compiler.LIBRARY_NAME)
        python, abi, platform = super().get_tag()
        return (python, abi, re.sub(r"\W", "_", sysconfig.get_platform()) if built.exists() else platform)


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels})
