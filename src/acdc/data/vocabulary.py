"""The tokens of a text: words, characters, or byte-level BPE, with a vocabulary built once from the training part.

words        separated by white space, <eos> for each end of line, <unk> for words that are not in the vocabulary;
             sorted by frequency, as an adaptive softmax needs them (WikiText-2 has 33,278, WikiText-103 267,735)
characters   Unicode characters of all parts (an alphabet tells nothing about a text), and <unk> for other texts
bpe          byte pairs by the tokenizers library; every text can be written, so there is no <unk>
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from acdc.errors import ArgumentError
from acdc.io import write_bytes

Kind = Literal["words", "characters", "bpe"]
EOS, UNKNOWN = "<eos>", "<unk>"
FORMAT = 1
VOCABULARY = "vocabulary.json"  # the name of its file, in a cache and in a run
_NEEDED: dict[Kind, tuple[str, ...]] = {"words": (EOS, UNKNOWN), "characters": (UNKNOWN,), "bpe": ()}
BPE_SIZE = 16_384  # tokens, unless a recipe says otherwise
_PIECE = 1 << 20  # characters encoded at a time, up to the next end of line
_BYTES = 256  # the smallest byte-level vocabulary


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one kind, by number. `bpe` is the tokenizers library's own JSON text, "" for other kinds."""

    kind: Kind
    tokens: tuple[str, ...]
    bpe: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Return the number of bytes that store one token."""
        return 2 if len(self) <= 1 << 16 else 4

    @cached_property
    def digest(self) -> str:
        """Return a checksum of the tokens in their order: two vocabularies with the same one are the same."""
        return hashlib.sha256(json.dumps([self.kind, self.tokens, self.bpe]).encode()).hexdigest()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _encoder(self) -> Any:
        return _library().Tokenizer.from_str(self.bpe)

    def encode(self, text: str) -> "tuple[array[int], int]":
        """Return the numbers of the tokens in a text, and how many tokens the vocabulary does not have."""
        numbers, unknown = array("I"), 0
        for piece in _pieces(text):
            if self.kind == "bpe":
                # Line by line, each with its end: shorter texts keep the library's cache small and both cores busy.
                for line in self._encoder.encode_batch_fast(piece.splitlines(keepends=True)):
                    numbers.extend(line.ids)
            else:
                part, missing = self._look_up(words_of(piece) if self.kind == "words" else piece)
                numbers.extend(part)
                unknown += missing
        return numbers, unknown

    def _look_up(self, tokens: Sequence[str]) -> tuple[list[int], int]:
        get, rest = self._numbers.get, self._numbers[UNKNOWN]
        numbers = [get(token, rest) for token in tokens]
        known_unknown = tokens.count(UNKNOWN) if self.kind == "words" else 0  # WikiText's files hold the token itself
        return numbers, numbers.count(rest) - known_unknown if rest in numbers else 0

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text of these tokens. Words are separated by one space: their own spacing is not stored."""
        if self.kind == "bpe":
            return self._encoder.decode(list(numbers), skip_special_tokens=False)
        tokens = [self.tokens[number] for number in numbers]
        if self.kind == "characters":
            return "".join(tokens)
        return "".join("\n" if token == EOS else f"{token} " for token in tokens)

    def size_in_bytes(self, number: int) -> int | None:
        """Return the bytes of text behind a token; None for a word, whose spacing is not stored."""
        if self.kind == "words":
            return None
        token = self.tokens[number]
        return len(token) if self.kind == "bpe" else len(token.encode())  # BPE writes each byte as one character

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON, with its digest."""
        content = {"format": FORMAT, "kind": self.kind, "digest": self.digest, "bpe": self.bpe, "tokens": self.tokens}
        write_bytes(path, (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8"))


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary that `save` wrote, or raise an ArgumentError that says what is wrong with the file."""

    def refused(why: str) -> ArgumentError:
        instead = "name the vocabulary.json of a run, or omit vocabulary to build one from the text"
        return ArgumentError("vocabulary", received=str(path), allowed=why, instead=instead)

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise refused("there is no such file") from None
    except OSError as error:
        raise refused(f"it cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise refused(f"it is damaged or not a vocabulary ({error})") from None
    if not isinstance(content, Mapping) or content.get("format") != FORMAT or content.get("kind") not in get_args(Kind):
        raise refused(f"it is not a vocabulary of format {FORMAT}")
    tokens, bpe = content.get("tokens"), content.get("bpe")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or not isinstance(bpe, str):
        raise refused("it is damaged: its tokens are not a list of texts")
    if missing := [token for token in _NEEDED[content["kind"]] if token not in tokens]:
        raise refused(f"it is damaged: it lacks {missing[0]}")
    vocabulary = Vocabulary(content["kind"], tuple(tokens), bpe)
    if vocabulary.digest != content.get("digest"):
        raise refused("it is damaged: its tokens do not match its digest")
    return vocabulary


# Building


def build_vocabulary(kind: Kind, parts: Mapping[str, str], size: int | None = None) -> Vocabulary:
    """Build the vocabulary of a text in parts, "train" among them, with at most `size` tokens.

    Words and byte pairs come from the training part alone. What exceeds `size` becomes <unk>, the rarest first.
    """
    if kind == "bpe":
        return _build_bpe(parts["train"], BPE_SIZE if size is None else size)
    if size is not None and size < 3:
        raise ArgumentError("size", received=size, allowed="expected 3 tokens or more", instead="write size = 10000")
    counts = Counter[str]()
    for text in [parts["train"]] if kind == "words" else parts.values():
        for piece in _pieces(text):
            counts.update(words_of(piece) if kind == "words" else piece)
    counts.pop(EOS if kind == "words" else "", None)
    special = (EOS,) if kind == "words" else ()
    ordered = [token for token, _ in counts.most_common()]  # those of equal frequency in the order they came in
    if size is not None:
        ordered = ordered[: size - len(special)]
    if UNKNOWN not in ordered:  # WikiText's files hold it as a word
        ordered = [*(ordered if size is None else ordered[: size - len(special) - 1]), UNKNOWN]
    return Vocabulary(kind, (*special, *ordered))


def _build_bpe(text: str, size: int) -> Vocabulary:
    if size < _BYTES:
        allowed = f"byte-level BPE has a token for each of {_BYTES} bytes"
        raise ArgumentError("size", received=size, allowed=allowed, instead=f"write size = {BPE_SIZE}, or omit it")
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    # GPT-2's rule for where a token may end, without the space it adds before the first word: bytes stay countable.
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    lines = (line for piece in _pieces(text) for line in piece.splitlines(keepends=True))
    tokenizer.train_from_iterator(lines, trainer)
    numbers = tokenizer.get_vocab()
    return Vocabulary("bpe", tuple(sorted(numbers, key=numbers.__getitem__)), tokenizer.to_str())


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tokenizers":
            raise
        raise ModuleNotFoundError(
            'tokens = "bpe" uses the tokenizers library, which is not installed; run: pip install "acdc-torch[text]", '
            'or write tokens = "words" or "characters"',
            name=error.name,
        ) from error
    return tokenizers


# Text


def words_of(text: str) -> list[str]:
    """Return the words of a text, with <eos> for each end of line."""
    lines = text.split("\n")
    words = [word for line in lines[:-1] for word in (*line.split(), EOS)]
    return words + lines[-1].split()


def count_words(text: str) -> int:
    """Count words as WikiText does: each end of line is one, since a model of words predicts it."""
    return sum(len(piece.split()) + piece.count("\n") for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, so that no list holds all its tokens: they end with a line, or else before a space."""
    start = 0
    while start < len(text):
        near, far = start + _PIECE, start + 2 * _PIECE
        end = len(text) if near >= len(text) else text.find("\n", near, far) + 1
        end = end or text.rfind(" ", near, far)
        end = end if end > start else min(far, len(text))
        yield text[start:end]
        start = end
