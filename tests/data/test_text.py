"""Text files become packed tokens: what is counted, what is kept, and what is refused."""

import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acdc.data import token_files
from acdc.data.text import TextData, load_text
from acdc.data.text_files import find_text, read_parts
from acdc.data.token_files import read_tokens
from acdc.data.vocabulary import EOS, UNKNOWN, Kind, build_vocabulary, count_words, read_vocabulary, words_of
from acdc.errors import ArgumentError
from tests.data.texts import folder, sentences

KINDS: tuple[Kind, ...] = ("words", "characters", "bpe")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "text"


def read(data: TextData, part: str) -> list[int]:
    return read_tokens(data.packed.tokens(part)).tolist()


# Vocabularies


def test_words_are_counted_as_in_wikitext() -> None:
    """An end of line is a word; <eos> comes first and the rest by frequency, which an adaptive softmax needs."""
    train = " = Title = \n \n the cat <unk> the \n the end"
    vocabulary = build_vocabulary("words", {"train": train})
    assert vocabulary.tokens == (EOS, "the", "=", "Title", "cat", UNKNOWN, "end")
    numbers, unknown = vocabulary.encode(train + " dog")
    assert [vocabulary.tokens[number] for number in numbers] == [*words_of(train), UNKNOWN]
    assert unknown == 1, "the <unk> that the text itself has is a word of it"
    assert count_words(train) == 12 == len(words_of(train)), "nine words and three ends of lines"


def test_a_limited_vocabulary_keeps_the_most_frequent() -> None:
    vocabulary = build_vocabulary("words", {"train": "a a a b b c d\n"}, size=4)
    assert vocabulary.tokens == (EOS, "a", "b", UNKNOWN)
    characters = build_vocabulary("characters", {"train": "aaabbc", "test": "d"}, size=3)
    assert characters.tokens == ("a", "b", UNKNOWN)
    numbers, unknown = characters.encode("abcd")
    assert (list(numbers), unknown) == ([0, 1, 2, 2], 2)


@pytest.mark.parametrize("kind", ["characters", "bpe"])
@settings(deadline=None, max_examples=30)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_every_text_comes_back_byte_for_byte(kind: Kind, text: str) -> None:
    vocabulary = build_vocabulary(kind, {"train": "a plain text\nof two lines\n", "test": text}, 300)
    numbers, unknown = vocabulary.encode(text)
    assert unknown == 0
    assert vocabulary.decode(numbers) == text
    assert sum(vocabulary.size_in_bytes(number) or 0 for number in numbers) == len(text.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_is_saved_with_a_digest(kind: Kind, tmp_path: Path) -> None:
    vocabulary = build_vocabulary(kind, {"train": sentences(20)}, 300)
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    assert read_vocabulary(path) == vocabulary
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokens"][:2] = content["tokens"][1::-1]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ArgumentError, match="do not match its digest"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "damaged or not a vocabulary"),
        ("[1]", "not a vocabulary of format 1"),
        ('{"format": 1, "kind": "letters"}', "not a vocabulary of format 1"),
        ('{"format": 1, "kind": "words", "tokens": [1], "bpe": ""}', "not a list of texts"),
        ('{"format": 1, "kind": "words", "tokens": ["a"], "bpe": ""}', "it lacks <eos>"),
    ],
)
def test_what_is_not_a_vocabulary_is_refused(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(ArgumentError, match=why):
        read_vocabulary(path)


def test_a_missing_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is no such file"):
        load_text(folder(tmp_path / "text"), tokens="words", vocabulary=str(tmp_path / "none.json"))


@pytest.mark.parametrize(("kind", "size"), [("bpe", 255), ("words", 2)])
def test_too_small_a_vocabulary_is_refused(kind: Kind, size: int) -> None:
    with pytest.raises(ArgumentError, match="size"):
        build_vocabulary(kind, {"train": "a b\n"}, size)


# Files and parts


def test_one_file_is_split_where_lines_begin(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(sentences(200), encoding="utf-8")
    parts = read_parts(find_text(path))
    assert "".join(parts.values()) == sentences(200)
    for part in ("train", "valid"):
        assert parts[part].endswith("\n")
    for part in ("valid", "test"):
        assert len(parts[part]) == pytest.approx(0.05 * len(sentences(200)), rel=0.2)
    note = load_text(path, tokens="words").notes[0]
    assert note == "the last 5 % of the text and the 5 % before them are held out for test and validation"


def test_a_text_without_lines_is_split_between_words(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("word " * 400)
    parts = read_parts(find_text(path))
    assert all(text.startswith("word") for text in parts.values())


def test_names_of_parts_and_compression_are_known(tmp_path: Path) -> None:
    for seed, name in enumerate(("wiki.train.tokens", "validation.txt.xz", "test.txt")):
        content = sentences(20, seed).encode()
        (tmp_path / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    assert read_parts(find_text(tmp_path)) == {
        part: sentences(20, seed) for seed, part in enumerate(("train", "valid", "test"))
    }
    assert find_text(tmp_path).note is None


def test_a_part_that_is_missing_is_held_out(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    (text / "test.txt").unlink()
    parts = read_parts(find_text(text))
    whole = (text / "train.txt").read_text(encoding="utf-8")
    assert parts["train"] + parts["test"] == whole
    assert parts["valid"] == (text / "valid.txt").read_text(encoding="utf-8")


def test_other_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(sentences(50, 1), encoding="utf-8")
    (tmp_path / "a.txt").write_text(sentences(50, 0), encoding="utf-8")
    (tmp_path / "README.md").write_text("about")
    assert "".join(read_parts(find_text(tmp_path)).values()) == sentences(50, 0) + sentences(50, 1)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.txt", b"", "there is no text in it"),
        ("blank.txt", b" \n\n ", "there is no text in it"),
        ("short.txt", b"ab", "too short to split"),
        ("latin.txt", "café au lait".encode("latin1"), "not UTF-8 text: byte 3 is 0xe9"),
        ("utf16.txt", "café".encode("utf-16"), "not UTF-8 text: byte 0 is 0xff .*iconv -f utf-16 -t utf-8"),
        ("utf32.txt", "café".encode("utf-32"), "not UTF-8 text: byte 0 is 0xff .*iconv -f utf-32 -t utf-8"),
        ("cut.txt.xz", lzma.compress(b"text " * 100)[:-20], "damaged or not a .xz file"),
    ],
)
def test_what_is_not_text_is_refused(name: str, content: bytes, why: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=why) as caught:
        load_text(path, tokens="characters")
    assert caught.value.argument == "data"
    assert caught.value.instead
    assert not cache.exists(), "nothing is packed"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((), "it has no text file"),
        (("valid.txt", "test.txt"), "but no train.txt"),
    ],
)
def test_a_folder_without_text_is_refused(names: tuple[str, ...], why: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("some text\n")
    with pytest.raises(FileNotFoundError, match=why):
        find_text(tmp_path)


def test_two_files_for_a_part_are_refused(tmp_path: Path) -> None:
    for name in ("train.txt", "wiki.train.tokens"):
        (tmp_path / name).write_text("some text\n")
    with pytest.raises(ArgumentError, match="are both its train part"):
        find_text(tmp_path)


# Packed tokens


@pytest.mark.parametrize("kind", KINDS)
def test_packed_tokens_are_those_of_the_text(kind: Kind, tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    said: list[str] = []
    data = load_text(text, tokens=kind, size=None if kind != "bpe" else 300, say=said.append)
    for part in ("train", "valid", "test"):
        content, counts = (text / f"{part}.txt").read_text(encoding="utf-8"), data.counts(part)
        assert read(data, part) == list(data.vocabulary.encode(content)[0])
        assert (counts.bytes, counts.words) == (len(content.encode()), count_words(content))
    assert len(said) == 1
    assert load_text(text, tokens=kind, size=None if kind != "bpe" else 300, say=said.append).packed == data.packed
    assert len(said) == 1, "it is packed only once"


def test_changed_text_is_packed_anew(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    before = load_text(text, tokens="words")
    (text / "test.txt").write_text("the cat sees\n")
    after = load_text(text, tokens="words")
    assert after.packed.folder != before.packed.folder
    assert after.counts("test").tokens == 4


def test_many_tokens_take_four_bytes(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(map(str, range(80_000))))
    data = load_text(path, tokens="words")
    assert data.packed.info.width == 4
    assert max(read(data, "train")) > 1 << 16


def test_tokens_above_32767_are_not_negative(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("\n".join(map(str, range(50_000))))
    data = load_text(path, tokens="words")
    assert data.packed.info.width == 2
    assert min(read(data, "train")) == 0
    assert max(read(data, "train")) > 1 << 15


@pytest.mark.parametrize(
    ("file", "damage", "why"),
    [
        ("train.bin", lambda content: content[:-2], "it is cut short"),
        ("train.bin", lambda content: content + b"..", "it is too long"),
        ("test.bin", lambda content: bytes([content[0] ^ 1]) + content[1:], "do not match the digest"),
        ("tokens.json", lambda content: content[:20], "tokens.json cannot be read"),
        ("tokens.json", lambda content: content.replace(b'"format": 1', b'"format": 2'), "not of this version"),
        ("vocabulary.json", lambda content: content[:-9], "vocabulary.json"),
    ],
)
def test_damaged_token_files_are_refused(file: str, damage: Callable[[bytes], bytes], why: str, tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    packed = load_text(text, tokens="words").packed
    path = packed.folder / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArgumentError, match=why) as caught:
        load_text(text, tokens="words")
    assert "remove this folder" in caught.value.instead


def test_the_vocabulary_of_another_text_in_the_cache_is_noticed(tmp_path: Path) -> None:
    text = folder(tmp_path / "text")
    packed = load_text(text, tokens="words").packed
    build_vocabulary("words", {"train": "other words\n"}).save(packed.folder / "vocabulary.json")
    with pytest.raises(ArgumentError, match="belongs to another text"):
        load_text(text, tokens="words")


def test_a_crash_while_packing_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "disk full")

    monkeypatch.setattr(token_files.Vocabulary, "save", fail)
    with pytest.raises(ArgumentError, match=r"cannot be written there \(disk full\)"):
        load_text(folder(tmp_path / "text"), tokens="words")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("place", ["a file", "a file/inside"])
def test_a_cache_that_cannot_be_written_is_named(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("mine")
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / place))
    with pytest.raises(ArgumentError, match=r"cannot be written there .*; make room, or set ACDC_CACHE to a folder"):
        load_text(folder(tmp_path / "text"), tokens="characters")
    assert (tmp_path / "a file").read_text() == "mine"


def test_a_folder_that_another_run_finished_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = folder(tmp_path / "text")
    first = load_text(text, tokens="words").packed
    again = token_files.pack(first.folder, read_parts(find_text(text)), first.vocabulary, first.info.source)
    assert again == first
    assert [path.name for path in first.folder.parent.iterdir()] == [first.folder.name]


# Own vocabularies


def test_another_vocabulary_is_used_if_it_knows_the_text(tmp_path: Path) -> None:
    text, path = folder(tmp_path / "text"), tmp_path / "vocabulary.json"
    build_vocabulary("words", {"train": sentences(300, seed=9) + "zebra\n"}).save(path)
    data = load_text(text, tokens="words", vocabulary=str(path))
    assert "zebra" in data.vocabulary.tokens
    assert load_text(text, tokens="words").vocabulary != data.vocabulary


def test_the_vocabulary_of_another_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    build_vocabulary("words", {"train": "entirely other words\n"}).save(path)
    with pytest.raises(ArgumentError, match="it belongs to another text") as caught:
        load_text(folder(tmp_path / "text"), tokens="words", vocabulary=str(path))
    assert caught.value.argument == "vocabulary"


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    build_vocabulary("words", {"train": sentences(300)}).save(path)
    with pytest.raises(ArgumentError, match="it is a vocabulary of words"):
        load_text(folder(tmp_path / "text"), tokens="characters", vocabulary=str(path))


# What is scored


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0, 25])
def test_scored_text_is_all_but_the_first_token(kind: Kind, limit: int, tmp_path: Path) -> None:
    data = load_text(folder(tmp_path / "text"), tokens=kind, size=None if kind != "bpe" else 300)
    first, *others = read(data, "test")
    numbers = others[: limit or None]
    scored = data.scored("test", limit)
    rest = data.vocabulary.decode(numbers)
    assert (scored.tokens, scored.words) == (len(numbers), count_words(rest))
    if kind != "words":
        assert scored.bytes == len(rest.encode())
    else:  # spaces before the next word are not stored, so only whole parts have a known size
        whole = (tmp_path / "text" / "test.txt").stat().st_size
        assert scored.bytes == (None if limit else whole - len(f"{data.vocabulary.tokens[first]} ".encode()))


def test_a_first_token_may_be_part_of_a_character(tmp_path: Path) -> None:
    """A character that the training part lacks is several tokens of one byte; the first of them is not scored."""
    path = folder(tmp_path / "text")
    (path / "test.txt").write_text("語 the cat\n", encoding="utf-8")
    data = load_text(path, tokens="bpe", size=300)
    assert data.vocabulary.size_in_bytes(read(data, "test")[0]) == 1
    assert data.scored("test").bytes == len("語 the cat\n".encode()) - 1


@pytest.mark.parametrize("limit", [0, 25])
def test_words_are_not_counted_where_nothing_separates_them(limit: int, tmp_path: Path) -> None:
    """Perplexity per word would be that of whole paragraphs; a vocabulary of words says what a word is."""
    path = tmp_path / "chinese.txt"
    path.write_text("天地玄黃宇宙洪荒日月盈昃辰宿列張\n" * 200, encoding="utf-8")
    assert load_text(path, tokens="characters").scored("test", limit).words is not None
    path.write_text("天地玄黃宇宙洪荒日月盈昃辰宿列張" * 200, encoding="utf-8")
    assert load_text(path, tokens="characters").scored("test", limit).words is None
    path.write_text(("x" * 100 + "\n") * 200, encoding="utf-8")
    scored = load_text(path, tokens="words").scored("test")
    assert scored.words == scored.tokens


@pytest.mark.parametrize(
    ("content", "count"), [("天地玄黃宇宙洪荒" * 9, "only 1 token"), ("two words" + " " * 900, "no tokens")]
)
def test_a_text_without_words_is_not_cut_into_words(content: str, count: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ArgumentError, match=f'part has {count}; use more text, or tokens = "characters" or "bpe"'):
        load_text(path, tokens="words")


def test_bytes_behind_unknown_tokens_are_not_guessed(tmp_path: Path) -> None:
    data = load_text(folder(tmp_path / "text"), tokens="characters", size=5)
    assert data.scored("test").bytes is None
    assert "so bits per byte are not given" in data.notes[-1]
