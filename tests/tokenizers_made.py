"""Small real tokenizers of the kinds that decoder-only models use, made in memory.

Each is built from parts of the `tokenizers` library exactly as the named family of models does it, on a
vocabulary small enough to build in milliseconds and rich enough to split words and characters.
"""

import json
from collections.abc import Callable
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

__all__ = [
    "CHATML",
    "MAKERS",
    "byte_level",
    "byte_level_prefix_space",
    "end_of_word_bpe",
    "llama_legacy",
    "metaspace_bpe",
    "space_replacing_bpe",
    "unigram",
    "word_piece",
]

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The   dog  sleeps.\n\n  def f(x):\n        return x\n" * 4,
    "system user assistant: hello, world! numbers 0123456789 <|tag|> end_of_turn \t tabs" * 4,
    "Größe žluťoučký ďábel שלום עולם 你好 世界 👩‍👩‍👧 😀 नमस्ते" * 4,
]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def _wrap(tokenizer: Tokenizer, *, bos: bool = False, **settings: object) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(_SPECIALS)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<think>", normalized=False)])
    if bos:
        identity = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", identity)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
        **settings,
    )


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2, Qwen, Llama 3: every byte is a letter of the alphabet."""
    return _byte_level(prefix_space=False, bos=True)


@cache
def byte_level_prefix_space() -> PreTrainedTokenizerFast:
    """As RoBERTa's: a space is put before the first word."""
    return _byte_level(prefix_space=True, bos=False)


def _byte_level(*, prefix_space: bool, bos: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(tokenizer, bos=bos)


def _sentencepiece_bpe(corpus: list[str]) -> models.BPE:
    """A BPE over "▁" with all 256 byte tokens; characters outside the corpus fall back to bytes."""
    teacher = Tokenizer(models.BPE(unk_token="<unk>"))
    teacher.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=specials, limit_alphabet=90, show_progress=False
    )
    teacher.train_from_iterator(corpus, trainer)
    model = json.loads(teacher.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)


@cache
def llama_legacy() -> PreTrainedTokenizerFast:
    """Llama 2 as first converted: "▁" is put before every stretch, one leading space is stripped."""
    tokenizer = Tokenizer(_sentencepiece_bpe(CORPUS))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, bos=True)


@cache
def metaspace_bpe() -> PreTrainedTokenizerFast:
    """Llama 2 as converted now, Mistral: Metaspace puts "▁" before the first word only."""
    tokenizer = Tokenizer(_sentencepiece_bpe(CORPUS))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, bos=True)


@cache
def space_replacing_bpe() -> PreTrainedTokenizerFast:
    """Gemma: spaces become "▁", nothing is put in front or stripped."""
    tokenizer = Tokenizer(_sentencepiece_bpe(CORPUS))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _wrap(tokenizer, bos=True)


@cache
def unigram() -> PreTrainedTokenizerFast:
    """XGLM and kin: Unigram under Metaspace; "</s>" is an entry of the model as well."""
    letters = sorted(set("".join(CORPUS)) - {" "})
    pieces = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("▁", -2.0),
        ("▁the", -3.0),
        ("ow", -4.0),
        ("own", -5.0),
    ]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((letter, -6.0) for letter in letters)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _wrap(tokenizer)


@cache
def word_piece() -> PreTrainedTokenizerFast:
    """BERT-like: words and "##" continuations, joined by spaces."""
    letters = sorted(set("".join(CORPUS)) - {" ", "\n", "\t"})
    entries = ["[UNK]", "the", "own", "##own", "##ox", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return _wrap(tokenizer)


@cache
def end_of_word_bpe() -> PreTrainedTokenizerFast:
    """OpenAI GPT, CLIP: the last token of a word ends in "</w>"."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(tokenizer)


MAKERS: tuple[Callable[[], PreTrainedTokenizerFast], ...] = (
    byte_level,
    byte_level_prefix_space,
    llama_legacy,
    metaspace_bpe,
    space_replacing_bpe,
    unigram,
    word_piece,
    end_of_word_bpe,
)
