"""Text to train language models on: any UTF-8 file or folder, its tokens packed once (see text_files, vocabulary).

data = load_text("corpus.txt", tokens="bpe", length=512)
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from acdc.data import token_files
from acdc.data.text_files import Source, find_text, read_parts
from acdc.data.token_batches import Scored
from acdc.data.token_files import PackedText, PartCounts
from acdc.data.vocabulary import Kind, Vocabulary, build_vocabulary, count_words, read_vocabulary
from acdc.errors import ArgumentError
from acdc.formatting import si
from acdc.typed_data import Limits

Order = Literal["windows", "streams"]
Length = Annotated[int, Limits(least=1, cap=1_000_000, text="tokens, 1 or more")]
Size = Annotated[int, Limits(least=3, cap=10_000_000, text="tokens, 3 or more")]
Steps = Annotated[int, Limits(least=0, cap=100_000_000, text="steps, 0 or more")]
Tokens = Annotated[int, Limits(least=0, cap=10**12, text="tokens, 0 or more")]

LENGTH = 256  # tokens of a row, unless a recipe says otherwise
_FAMILIAR = 0.5  # the share of a text's words that a vocabulary must have to be called its own
_LONGEST_WORDS = 40  # bytes: the mean above which white space separates no words; Tamil's have about 28
_DEVICE_SHARE = 0.25  # of a GPU's free memory, which tokens may use


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The way a text is cut into batches; see `load_text`."""

    length: int
    evaluation_length: int
    evaluation_memory: int | None
    evaluation_clamp: int | None
    order: Order
    steps: int
    epoch_evaluation: int


@dataclass(frozen=True, kw_only=True)
class TextData:
    """A text in tokens, and how it is to be cut into batches."""

    name: str
    packed: PackedText
    settings: TextSettings
    notes: tuple[str, ...] = ()

    @property
    def vocabulary(self) -> Vocabulary:
        return self.packed.vocabulary

    def counts(self, part: str) -> PartCounts:
        return self.packed.info.parts[part]

    def identity(self) -> str:
        """Return a checksum of the text and its vocabulary."""
        return f"{self.packed.info.source[:32]} {self.vocabulary.digest[:32]}"

    def tokens(self, part: str, device: torch.device) -> Tensor:
        """Return the tokens as stored, on the device if they fit there, so that no batch waits for them."""
        stored = self.packed.tokens(part)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if stored.numel() * stored.element_size() <= _DEVICE_SHARE * free:
                return stored.to(device)
        return stored

    def scored(self, part: str, limit: int = 0) -> Scored:
        """Return the size of a part without its first token; or of its beginning, with `limit` scored tokens."""
        counts, vocabulary = self.counts(part), self.vocabulary
        stored = self.packed.tokens(part)
        if not limit or limit >= counts.tokens - 1:
            pair = token_files.read_tokens(stored[:2]).tolist()
            first, both, second = (vocabulary.decode(numbers) for numbers in (pair[:1], pair, pair[1:]))
            size = vocabulary.size_in_bytes(pair[0])  # None for a word: it and a space
            words = counts.words - (count_words(both) - count_words(second))  # a token may be part of a word
            return Scored(
                tokens=counts.tokens - 1,
                bytes=counts.bytes - (len(first.encode()) if size is None else size) if not counts.unknown else None,
                words=words if self._has_words(part) else None,
            )
        numbers = token_files.read_tokens(stored[1 : limit + 1]).tolist()
        sizes = [vocabulary.size_in_bytes(number) for number in numbers] if vocabulary.kind != "words" else []
        known = bool(sizes) and not counts.unknown
        return Scored(
            tokens=limit,
            bytes=sum(size for size in sizes if size is not None) if known else None,
            words=count_words(vocabulary.decode(numbers)) if self._has_words(part) else None,
        )

    def _has_words(self, part: str) -> bool:
        counts = self.counts(part)
        return self.vocabulary.kind == "words" or counts.bytes <= _LONGEST_WORDS * counts.words


def load_text(
    root: str | os.PathLike[str],
    *,
    tokens: Kind = "bpe",
    size: Size | None = None,
    length: Length = LENGTH,
    evaluation_length: Length | None = None,
    evaluation_memory: Length | None = None,
    evaluation_clamp: Length | None = None,
    order: Order = "windows",
    steps: Steps = 0,
    epoch_evaluation: Tokens = 0,
    vocabulary: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> TextData:
    """Load a text file or folder; its tokens are packed on first use, into a cache folder (token_files).

    tokens             "words", "characters" or "bpe"
    size               the most tokens of the vocabulary: all words or characters, or 16,384 byte pairs
    length             tokens of a row of a training batch; evaluation_length is the same unless it is set
    evaluation_memory  tokens that a model with a memory keeps in an evaluation, and evaluation_clamp the largest
                       distance that it tells apart there; without them, as in training
    order              "windows" at random, or "streams" from left to right, for models with a memory
    steps              batches in an epoch; 0 for a pass over the text
    epoch_evaluation   tokens that are evaluated after each epoch, of each part; 0 for all. The last model sees all
    vocabulary         the vocabulary.json of another run, to use its tokens
    """
    source = find_text(Path(root))
    own = read_vocabulary(Path(vocabulary)) if vocabulary is not None else None
    if own and own.kind != tokens:
        allowed = f"it is a vocabulary of {own.kind}, but data.tokens is {tokens!r}"
        raise ArgumentError("vocabulary", received=vocabulary, allowed=allowed, instead=f'write tokens = "{own.kind}"')
    packed = _open(source, tokens, size, own, say)
    notes = [source.note] if source.note else []
    unknown = {part: one.unknown for part, one in packed.info.parts.items() if one.unknown}
    if unknown:
        listed = ", ".join(
            f"{count:,} of {packed.info.parts[part].tokens:,} in {part}" for part, count in unknown.items()
        )
        notes.append(f"tokens that are not in the vocabulary become <unk>: {listed}; so bits per byte are not given")
    if own:
        _check_familiar(packed, str(vocabulary))
    for part, counts in packed.info.parts.items():
        if counts.tokens < 2:
            raise ArgumentError(
                "data",
                received=str(root),
                allowed=f"its {part} part has {'only 1 token' if counts.tokens else 'no tokens'}",
                instead="use more text"
                + (', or tokens = "characters" or "bpe": words end at white space' if tokens == "words" else ""),
            )
    settings = TextSettings(
        length=length,
        evaluation_length=evaluation_length or length,
        evaluation_memory=evaluation_memory,
        evaluation_clamp=evaluation_clamp,
        order=order,
        steps=steps,
        epoch_evaluation=epoch_evaluation,
    )
    return TextData(name=source.name, packed=packed, settings=settings, notes=tuple(notes))


def _open(
    source: Source, kind: Kind, size: int | None, own: Vocabulary | None, say: Callable[[str], None]
) -> PackedText:
    """Open the packed text, or build it first."""
    keys = [token_files.packed_key(source.digest, kind, size, digest) for digest in (None, own.digest if own else None)]
    for key in dict.fromkeys(keys):  # with the text's own vocabulary first, which may be the same
        packed = token_files.open_packed(token_files.cache_folder() / key)
        if packed is not None and own in (None, packed.vocabulary):
            return packed
    folder = token_files.cache_folder() / keys[-1]
    parts = read_parts(source)
    say(f"{source.name}: packing {si(sum(map(len, parts.values())))} characters as {kind}, once, into {folder}")
    return token_files.pack(folder, parts, own or build_vocabulary(kind, parts, size), source.digest)


def _check_familiar(packed: PackedText, vocabulary: str) -> None:
    """Raise if a vocabulary lacks most of a text: it belongs to another."""
    for part, counts in packed.info.parts.items():
        if counts.unknown > _FAMILIAR * counts.tokens:
            raise ArgumentError(
                "vocabulary",
                received=vocabulary,
                allowed=f"it belongs to another text: it lacks {counts.unknown:,} of the {counts.tokens:,} tokens in "
                f"the {part} part",
                instead="name the vocabulary of this text, or omit vocabulary to build one",
            )
