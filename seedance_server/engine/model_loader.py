"""From a path to a model that is known to run: a directory, a hub id or a GGUF file.

Every failure on the way is one of the `ModelLoadError` kinds, with a reason of one line: who starts a server
gets a sentence, not a traceback. A `LoadedModel` has passed the probe (see `model_probe.py`), so the engine
needs no check of its own. What happens is told through `progress`; nothing else is printed but the bar of a
download.
"""

import gc
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from attrs import evolve, field, frozen
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import enable_progress_bars as enable_hub_progress_bars
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GgufConfig,
    modeling_gguf_pytorch_utils,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from seedance_server.engine.attention import UnsupportedAttention
from seedance_server.engine.backend import Backend
from seedance_server.engine.backend_choice import choose_backend
from seedance_server.engine.config import DtypeName, FormsName, KernelsName, QuantizeName
from seedance_server.engine.constraint import Constraints
from seedance_server.engine.errors import (
    InsufficientMemory,
    KernelsUnavailable,
    ModelFileError,
    ModelLoadError,
    ModelNotFound,
    UnsupportedModel,
)
from seedance_server.engine.kv_cache import KvGeometry
from seedance_server.engine.memory import available_memory
from seedance_server.engine.model_fingerprint import (
    digest_tokenizer,
    digest_weights,
    fingerprint_model,
)
from seedance_server.engine.model_probe import probe_model
from seedance_server.engine.progress import Progress, silent
from seedance_server.engine.tokenizer_files import find_tokenizer_files, read_tokenizer

__all__ = ["LoadedModel", "load_model"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_GGUF_MAGIC = b"GGUF"
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings that change for all rows of a call when one of them is beyond the original context:
packed neighbours would feel it, so the context ends there."""


@frozen(eq=False, kw_only=True)
class LoadedModel:
    """A model, its tokenizer, and what the engine needs to know of them.

    Attributes:
        model: The Transformers model, in place, switched to packed attention.
        tokenizer: The Transformers tokenizer.
        name: What to call it: the last part of its path.
        eos_token_ids: Tokens that end an answer.
        context_length: Most tokens of prompt and answer together.
        vocab_size: Width of a row of logits.
        geometry: What its layers keep per token.
        constraints: What answers with a form may say.
        backend: What computes it.
        computing: The same in words, with the reason, for whoever runs the server.
        fingerprint: SHA-256 of all that its tokens follow from, see `fingerprint_model`.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    eos_token_ids: frozenset[int]
    context_length: int
    vocab_size: int
    geometry: KvGeometry
    constraints: Constraints = field(repr=False)
    backend: Backend = field(repr=False)
    fingerprint: bytes = field(repr=False)
    computing: str = ""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device


def load_model(
    path: str,
    *,
    dtype: DtypeName = "auto",
    kernels: KernelsName = "auto",
    quantize: QuantizeName = "none",
    structured_output: FormsName = "lazy",
    progress: Progress = silent,
) -> LoadedModel:
    """Load ``path`` onto the GPU, where there is one, or the CPU.

    Args:
        path: A directory with a Transformers model, a GGUF file, or the id of a model on the Hugging Face
            hub.
        dtype: Of the weights. "auto" keeps float32 checkpoints and takes bfloat16 for all others where the
            processor multiplies it natively, float32 where it doesn't.
        kernels: What computes it, see `choose_backend`.
        quantize: In how many bits it keeps the weights.
        structured_output: When to read the vocabulary for answers with a form: "lazy" at the first such
            request, "eager" now, "off" never: such requests are refused.
        progress: Told of each stage.

    Raises:
        ModelNotFound: Nothing is at ``path``, and it is no hub id or the hub can't deliver it.
        ModelFileError: A file is missing, incomplete or unreadable.
        UnsupportedModel: It isn't a decoder-only language model that this engine runs.
        InsufficientMemory: The weights alone don't fit.
        KernelsUnavailable: "native" kernels don't run here, or don't compute what the model does.
        QuantizeUnavailable: Nothing here multiplies weights of so few bits.
    """
    with _quiet_transformers():
        return _Loading(path, progress).run(dtype, kernels, quantize, structured_output)


class _Loading:
    """The stages of one load; each turns what may go wrong in it into our errors."""

    def __init__(self, path: str, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._source, self._options = self._locate()

    def run(
        self, dtype: DtypeName, kernels: KernelsName, quantize: QuantizeName, structured_output: FormsName
    ) -> LoadedModel:
        from_hub = not self._options
        self._progress(
            f"reading {self._path} from the Hugging Face hub, or its cache; a first download takes its time"
            if from_hub
            else f"reading {self._path}"
        )
        config = self._read("its config", lambda: AutoConfig.from_pretrained(self._source, **self._options))
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModel(self._path, "it is an encoder-decoder model, not a decoder")
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise UnsupportedModel(self._path, f"{config.model_type} has no language model head")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        chosen = _choose_dtype(config, dtype, device, gguf="gguf_file" in self._options)
        context_length = self._context_length(config.get_text_config(decoder=True))
        self._check_memory(device)
        _read_ahead(self._weight_files())
        load = partial(self._load, context_length, chosen, device, structured_output)
        try:
            return load(kernels, quantize)
        except KernelsUnavailable as error:
            if kernels == "native" or quantize != "none":
                raise
            failure = error.reason
        gc.collect()  # its weights were packed already, and are gone with the model: from the start, then
        self._progress(f"the native kernels fail: {failure}; loading it again for PyTorch's")
        return evolve(load("torch"), computing=f"PyTorch's kernels, since the native ones fail: {failure}")

    @cached_property
    def _tokenizer(self) -> tuple[Any, bytes]:
        """The tokenizer, and what it adds to the fingerprint."""
        self._progress("loading its tokenizer")
        tokenizer = self._read("its tokenizer", lambda: read_tokenizer(self._source, **self._options))
        files = [] if "gguf_file" in self._options else find_tokenizer_files(self._source, tokenizer)
        return tokenizer, digest_tokenizer(tokenizer, files)

    def _load(
        self,
        context_length: int,
        dtype: torch.dtype,
        device: torch.device,
        structured_output: FormsName,
        kernels: KernelsName,
        quantize: QuantizeName = "none",
    ) -> LoadedModel:
        """The model with its weights, proved and taken over by what computes it."""
        self._progress(f"loading its weights as {str(dtype).removeprefix('torch.')}")
        model = self._load_weights(dtype).to(device).eval()
        backend, computing = choose_backend(model, kernels, quantize)
        self._progress(f"computing with {computing}")
        backend.prepare(model)
        tokenizer, tokenizer_digest = self._tokenizer  # Python alone; the backend prepares itself meanwhile
        weights_digest = digest_weights(model, self._progress)
        self._progress("checking that its attention is ours")
        try:
            probed = probe_model(model)
        except UnsupportedAttention as error:
            raise UnsupportedModel(self._path, str(error)) from error
        vocab_size = model.get_output_embeddings().weight.shape[0]
        try:
            backend.adopt(model, probed, self._progress)  # from here on its weights may be elsewhere
        except MemoryError as error:
            raise InsufficientMemory(self._weight_bytes(), None) from error
        eos_token_ids = _eos_token_ids(model, tokenizer, vocab_size)
        fingerprint = fingerprint_model(
            model.config, weights_digest, tokenizer_digest, eos_token_ids, backend.name
        )
        constraints = Constraints(tokenizer, vocab_size, eos_token_ids, offered=structured_output != "off")
        if structured_output == "eager":
            self._progress("reading its vocabulary for structured output")
            constraints.prepare()
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            name=Path(self._path).name.removesuffix(".gguf"),
            eos_token_ids=eos_token_ids,
            context_length=context_length,
            vocab_size=vocab_size,
            geometry=probed.geometry,
            constraints=constraints,
            backend=backend,
            computing=computing,
            fingerprint=fingerprint,
        )

    def _locate(self) -> tuple[str, dict[str, Any]]:
        """What to hand to `from_pretrained`, and with which options."""
        path = Path(self._path).expanduser()
        if self._path and path.is_dir():
            if not (path / "config.json").is_file():
                raise ModelFileError(self._path, "the directory holds no config.json")
            return str(path), {"local_files_only": True}
        if path.is_file():
            try:
                with path.open("rb") as file:
                    magic = file.read(len(_GGUF_MAGIC))
            except OSError as error:
                raise ModelFileError(self._path, error.strerror or "unreadable") from error
            if magic != _GGUF_MAGIC:
                raise ModelFileError(self._path, "it isn't a GGUF file: those start with the letters GGUF")
            return str(path.parent), {"gguf_file": path.name, "local_files_only": True}
        if path.suffix == ".gguf" or not _HUB_ID.fullmatch(self._path):
            raise ModelNotFound(self._path, "there is no such file or directory")
        return self._path, {}

    def _read(self, what: str, read: Callable[[], Any]) -> Any:
        """Run one of Transformers' readers, whose exceptions follow no scheme."""
        try:
            return read()
        except Exception as error:
            raise self._classify(what, error) from error

    def _classify(self, what: str, error: Exception) -> ModelLoadError:
        reason = _first_line(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return InsufficientMemory(self._weight_bytes(), None)  # which memory, the error doesn't say
        if not self._options and isinstance(error, OSError):
            return ModelNotFound(
                self._path, f"there is no such file or directory, and the hub doesn't deliver it ({reason})"
            )
        # Transformers says ValueError where it knows no such architecture, ImportError where a quantised
        # checkpoint wants a library that isn't there; the GGUF library says NotImplementedError of a kind of
        # packed weights that it can't unpack.
        if isinstance(error, ValueError | ImportError | NotImplementedError) and not isinstance(
            error, UnicodeError
        ):
            return UnsupportedModel(self._path, f"{what}: {reason}")
        return ModelFileError(self._path, f"{what}: {reason}")

    def _load_weights(self, dtype: torch.dtype) -> Any:
        options = dict(self._options)
        if "gguf_file" in options:
            options["quantization_config"] = GgufConfig(dequantize=True)
        model, report = self._read(
            "its weights",
            lambda: AutoModelForCausalLM.from_pretrained(
                self._source, dtype=dtype, output_loading_info=True, **options
            ),
        )
        if missing := sorted(report["missing_keys"]):
            # Transformers would go on with random weights in their place.
            raise UnsupportedModel(self._path, f"it lacks {len(missing)} weights, such as {missing[0]}")
        return model

    def _weight_bytes(self) -> int:
        if "gguf_file" in self._options:
            return (Path(self._source) / str(self._options["gguf_file"])).stat().st_size
        return sum(file.stat().st_size for file in self._weight_files())

    def _weight_files(self) -> list[Path]:
        return sorted(Path(self._source).glob("*.safetensors")) if Path(self._source).is_dir() else []

    def _check_memory(self, device: torch.device) -> None:
        needed, available = self._weight_bytes(), available_memory(device)
        if needed > available:
            raise InsufficientMemory(needed, available)

    def _context_length(self, config: Any) -> int:
        length = getattr(config, "max_position_embeddings", None)
        if not length:
            raise UnsupportedModel(self._path, "its config doesn't say how long a context it knows")
        rope = getattr(config, "rope_parameters", None) or {}
        for parameters in (rope, *(entry for entry in rope.values() if isinstance(entry, dict))):
            if parameters.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
                length = min(length, parameters.get("original_max_position_embeddings") or length)
        return int(length)


def _read_ahead(files: list[Path]) -> None:
    """Have the system read whole files, in order: a mapped one is read page by page, where it is touched."""
    for file in files:
        with file.open("rb") as opened, suppress(OSError):
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _choose_dtype(config: Any, dtype: DtypeName, device: torch.device, *, gguf: bool) -> torch.dtype:
    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    stored = getattr(config.get_text_config(decoder=True), "dtype", None)
    if not gguf and stored in (None, torch.float32):
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    native = torch.cpu.get_capabilities()
    fast = native.get("avx512_bf16") or native.get("amx_bf16") or native.get("bf16")
    return torch.bfloat16 if fast else torch.float32


def _eos_token_ids(model: Any, tokenizer: Any, vocab_size: int) -> frozenset[int]:
    """Those named that the model can choose: a tokenizer may know of more tokens than it has."""
    generation = getattr(model, "generation_config", None)
    named = (
        getattr(generation, "eos_token_id", None),
        model.config.get_text_config(decoder=True).eos_token_id,
        tokenizer.eos_token_id,
    )
    ids: set[int] = set()
    for entry in named:
        ids.update([entry] if isinstance(entry, int) else entry or ())
    return frozenset(token_id for token_id in ids if 0 <= token_id < vocab_size)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Transformers draws progress bars and logs advice on stderr; ours is told through `progress`.

    A download from the hub may take minutes, so its bars stay. Its log of tries doesn't: the reason of the
    last one is in our error.
    """
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    hub_verbosity = hub_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    hub_logging.set_verbosity(logging.CRITICAL)
    enable_hub_progress_bars()
    gguf_reader = vars(modeling_gguf_pytorch_utils)
    gguf_bar = gguf_reader.get("tqdm")
    gguf_reader["tqdm"] = lambda tensors, **_: tensors  # the one bar that doesn't heed the switch above
    try:
        yield
    finally:
        gguf_reader["tqdm"] = gguf_bar
        transformers_logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
