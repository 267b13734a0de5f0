"""The engine's own CPU kernels: C++ beside the Python that builds, loads, checks and calls it."""
