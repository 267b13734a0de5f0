from gpu.summary import summarise

ENVIRONMENT = {"gpu": "NVIDIA Imaginary", "processor": "x86_64", "cuda": None}
CELL = {
    "streams": 8,
    "graphs": "on",
    "temperature": 0.0,
    "tokens_per_s": 1234.5,
    "step_ms": 6.5,
    "step_ms_p99": 7.0,
    "forward_span_ms": 4.0,
    "sampler_span_ms": 1.5,
    "rest_ms": 1.0,
    "obstacle": None,
    "peak_bytes": 3 * 2**30,
}


def test_summary_of_a_run_that_has_just_begun():
    """It is written anew after each step, from the first on."""
    text = summarise({"environment": ENVIRONMENT, "tests": None, "models": {}})
    assert "NVIDIA Imaginary" in text
    assert "Tests: not run" in text
    assert "None" not in text


def test_summary_shows_figures_failures_and_what_was_left_out():
    """Nobody has to open the JSON to learn that something is missing."""
    kernels = {"streams": 8, "graphs": "on", "step_ms": 6.0, "busy_ms": 2.25, "idle_ms": 3.75}
    kernels["kernels"] = [{"name": "gemm", "ms": 2.0, "calls": 9}]
    part = {"cells": [CELL], "kernels": [kernels], "failures": [{"what": "7b", "error": "no memory"}]}
    tests = {"outcome": "passed", "last": "20 passed in 31 s"}
    report = {"environment": ENVIRONMENT, "tests": tests, "models": {"1b": part}, "skipped": ["a", "b"]}
    text = summarise(report)
    for part in (
        "1,234",
        "(38%)",
        "none for 3.75",
        "gemm",
        "failed: 7b: no memory",
        "a; b",
        "20 passed in 31 s",
        "3.0",
    ):
        assert part in text


def test_summary_says_where_a_device_refused_to_record():
    """A column of "on" would say what wasn't so."""
    part = {"cells": [CELL | {"obstacle": "not permitted"}], "kernels": [], "failures": []}
    assert "refused" in summarise({"environment": ENVIRONMENT, "tests": None, "models": {"1b": part}})
