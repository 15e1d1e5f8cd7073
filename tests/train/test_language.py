"""Language models in the training loop: scores by token, byte and word, memories that survive a stop, bad input."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.cli import main
from acdc.data.token_batches import Evaluation, Scored, Streams, Windows
from acdc.formatting import fixed
from acdc.models.transformer_xl import TransformerXL
from acdc.recipes import load
from acdc.recipes.fit import count_uses
from acdc.recipes.schema import Recipe
from acdc.runs.quality import PERPLEXITY
from acdc.runs.records import EpochRow, TextScore
from acdc.train import experiment
from acdc.train.distributed import World
from acdc.train.evaluate import evaluate, text_score
from acdc.train.execution import Execution, Setting
from acdc.train.loading import LoadedData
from acdc.train.loading import load as load_data
from acdc.train.stage import Stage
from acdc.train.tasks import LanguageModelling, NextToken
from acdc.typed_data import decode
from tests.data.texts import folder, sentences
from tests.docs.blocks import read

CPU = torch.device("cpu")
TABLES: dict[str, Any] = {
    "model": {"name": "gpt-10m", "layers": 1, "width": 16, "heads": 2, "context": 12, "dropout": 0.1},
    "data": {"name": "text", "tokens": "characters", "length": 12, "steps": 6},
    "optimizer": {"name": "adamw", "lr": 0.01},
    "rate": {"shape": "cosine", "per": "step", "warmup": 0.5},
    "train": {"epochs": 4, "batch_size": 6, "clip_norm": 1.0},
    "method": {"sparsity": 0.5, "schedule": "paper"},
}
XL: dict[str, Any] = {
    **TABLES,
    "model": {
        "name": "transformer-xl-small", "layers": 2, "width": 16, "heads": 2, "head_width": 8, "feedforward": 32,
        "target_length": 12, "memory_length": 20, "dropout": 0.1, "attention_dropout": 0.1,
    },
    "data": {**TABLES["data"], "tokens": "words", "order": "streams"},
    "train": {**TABLES["train"], "accumulate": 2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACDC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return folder(tmp_path / "text")


def stage(recipe: Recipe, data: LoadedData, out: Path) -> Stage:
    torch.manual_seed(0)
    model = data.new_model(recipe)
    setting = Setting(device=CPU, execution=Execution(False, False, ()), checkpoints=out)
    return Stage(
        0,
        "acdc",
        model,
        data.loaders,
        recipe,
        setting,
        uses=count_uses(model, data.facts),
        method=recipe.build_method(),
    )


def without_clocks(row: EpochRow) -> dict[str, Any]:
    said = {key: value for key, value in vars(row).items() if not key.endswith("seconds")}
    assert row.language is not None
    return said | {"language": {k: v for k, v in vars(row.language).items() if k != "tokens_per_second"}}


def prepared(tables: dict[str, Any], text: Path, *settings: str) -> tuple[Recipe, LoadedData]:
    recipe = load.from_tables("small", tables, settings)
    return recipe, load_data(recipe, CPU, root=text, world=World())


# Training


@pytest.mark.parametrize("tables", [TABLES, XL], ids=["windows", "streams"])
def test_a_run_stopped_inside_an_epoch_goes_on_with_the_same_bits(
    tables: dict[str, Any], text: Path, tmp_path: Path
) -> None:
    """The memory of a model that has one is part of the checkpoint; here it is longer than a segment."""
    recipe, data = prepared(tables, text, "run.checkpoint_every=10st")
    whole = stage(recipe, data, tmp_path / "whole")
    rows = list(whole.run())
    first = stage(recipe, data, tmp_path / "first")
    save = first.save

    def save_and_stop() -> None:
        save()
        if first.step == 10:
            raise KeyboardInterrupt

    first.save = save_and_stop
    with pytest.raises(KeyboardInterrupt):
        list(first.run())
    state = torch.load(first.saved or "", map_location="cpu", weights_only=True)
    assert (state["epoch"], state["batch"]) == (1, 4)
    again = stage(recipe, data, tmp_path / "again")
    again.load_state_dict(state)
    rest = list(again.run())
    assert [without_clocks(row) for row in rest] == [without_clocks(row) for row in rows[1:]]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    if tables is XL:
        (memory,) = state["language"]["memory"]
        assert [tuple(part[0].shape) for part in memory] == [(3, 20, 16), (3, 20, 16)]


def test_a_memory_is_what_the_model_returned_before(text: Path) -> None:
    """By hand: the same segments, one after the other, with the memory that the model itself returns."""
    recipe, data = prepared(XL, text, "model.dropout=0", "model.attention_dropout=0")
    model, train = data.new_model(recipe), data.loaders.train
    assert isinstance(train, Streams)
    assert isinstance(model, TransformerXL)
    task, losses, by_hand = LanguageModelling(train), [], []
    module = task.module(model)
    memory = None
    for number, (tokens, targets) in enumerate(train.batches(0)):
        task.begin(model, 0, number, [len(tokens)])
        loss, logits = task.loss(module, tokens, targets, 0)
        loss.backward()
        task.end(0)
        assert logits is None
        losses.append(loss.item())
        expected, memory = model(tokens, targets, memory)
        by_hand.append(expected.item())
    assert losses == by_hand
    assert task.steady, "from the second segment of the full length on"
    kept = task.state_dict()[0]
    assert memory is not None
    assert all(torch.equal(a, b) for a, b in zip(kept, memory, strict=True))


class Recurrent(nn.Module):
    """A model of one's own with a memory, which it returns as it computed it: with its gradient."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(vocabulary, 8), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, vocabulary)

    def start_memory(self, batch: int) -> Tensor:
        return torch.zeros(1, batch, 8)

    def forward(self, tokens: Tensor, targets: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden, memory = self.cell(self.words(tokens), memory)
        return F.cross_entropy(self.out(hidden).flatten(0, 1), targets.flatten()), memory


def test_the_memory_of_a_model_of_ones_own_carries_no_gradient(text: Path, tmp_path: Path) -> None:
    """Its shape is the same from the first batch on, so it is copied in place."""
    tables = TABLES | {"model": {"name": "tests.train.test_language:Recurrent"}}
    recipe, data = prepared(tables, text, "data.order=streams")
    one = stage(recipe, data, tmp_path)
    assert len(list(one.run())) == 4
    (memory,) = one.task.state_dict()
    assert memory.abs().sum() > 0


def test_flops_that_are_not_counted_are_named(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["model.name=tests.train.test_language:Recurrent", "data.order=streams", "data.length=12"]
    settings += [f"model.{option}=" for option in ("layers", "width", "heads", "context")]
    typed = [part for setting in settings for part in ("--set", setting)]
    assert main(["check", "text-quick", "--data", str(text), "--no-timing", *typed]) == 0
    said = capsys.readouterr()
    assert "a lower bound, because these have unknown layer types and count 0: cell.weight_ih_l0" in said.out + said.err


def test_a_batch_in_parts_computes_the_same(text: Path, tmp_path: Path) -> None:
    plain = [f"model.{option}=0" for option in ("dropout", "attention_dropout")]
    ends = []
    for parts in (1, 2, 4):
        recipe, data = prepared(XL, text, *plain, f"train.accumulate={parts}", "train.epochs=2", "method.schedule=",
                                "method.name=dense", "method.sparsity=")  # fmt: skip
        one = stage(recipe, data, tmp_path / str(parts))
        ends.append([row.test_loss for row in one.run()])
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)
    assert ends[0] == pytest.approx(ends[2], rel=1e-4)


def test_the_average_number_of_parameters_is_over_all_epochs(text: Path, tmp_path: Path) -> None:
    recipe, data = prepared(TABLES, text)
    one = stage(recipe, data, tmp_path)
    rows = [row.language for row in one.run() if row.language]
    counts = [row.parameters for row in rows]
    assert rows[-1].average_parameters == sum(counts) / 4
    size = sum(param.numel() for param in one.model.parameters())
    assert counts[0] == size
    pruned = sum(weight.param.numel() for weight in one.sparsifier.layers.weights) if one.sparsifier else 0
    assert counts[-1] == size - pruned // 2


# Evaluation


class Bigram(nn.Module):
    """A model whose prediction depends on one token: however a text is cut, each token has the same loss."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        generator = torch.Generator().manual_seed(0)
        nn.init.normal_(self.table.weight, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


@pytest.mark.parametrize("order", ["windows", "streams"])
@pytest.mark.parametrize("tokens", ["words", "characters"])
@pytest.mark.parametrize("length", [7, 50, 10_000])
def test_scores_are_those_of_the_whole_text(order: str, tokens: str, length: int, text: Path, tmp_path: Path) -> None:
    settings = [f"data.order={order}", f"data.tokens={tokens}", f"data.evaluation_length={length}"]
    recipe, data = prepared(TABLES, text, *settings)
    assert data.text is not None
    model = Bigram(len(data.text.vocabulary))
    content = (text / "test.txt").read_text(encoding="utf-8")
    numbers = torch.tensor(data.text.vocabulary.encode(content)[0])
    total = F.cross_entropy(model(numbers[:-1]).double(), numbers[1:], reduction="sum").item()
    setting = Setting(device=CPU, execution=Execution(False, False, ()), checkpoints=tmp_path)
    score = evaluate(model, data.loaders.test, recipe, setting)
    assert score.text is not None
    assert (score.samples, score.text.tokens) == (len(numbers) - 1, len(numbers) - 1)
    assert score.loss == pytest.approx(total / (len(numbers) - 1), rel=1e-6)
    assert score.text.perplexity == math.exp(score.loss)
    scored = data.text.scored("test")
    assert scored.words is not None
    assert score.text.bits_per_byte == pytest.approx(total / math.log(2) / (scored.bytes or 0), rel=1e-6)
    assert score.text.word_perplexity == pytest.approx(math.exp(total / scored.words), rel=1e-5)
    if tokens == "words":
        assert score.text.word_perplexity == pytest.approx(score.text.perplexity)


def test_a_loss_beyond_all_bounds_leaves_records_that_can_be_read() -> None:
    score = text_score(1e6, 10, Scored(tokens=10, bytes=20, words=2))
    assert decode(TextScore, asdict(score)) == score
    assert PERPLEXITY.text(score.perplexity) == fixed(score.perplexity, 2) == "7.72e+99"
    assert text_score(1.0, 10, Scored(tokens=10, bytes=20, words=None)).word_perplexity is None


def test_only_the_beginning_is_evaluated_after_an_epoch(text: Path, tmp_path: Path) -> None:
    recipe, data = prepared(TABLES, text, "data.epoch_evaluation=100")
    row = next(iter(stage(recipe, data, tmp_path).run()))
    assert row.language is not None
    assert row.language.validation is not None
    assert row.language.test.tokens == row.language.validation.tokens == 100
    assert isinstance(data.loaders.test, Evaluation)
    assert data.loaders.test.samples == data.facts.test - 1
    assert "only the first 100 tokens" in data.notes[-1]


def test_an_evaluation_has_its_own_memory(text: Path, tmp_path: Path) -> None:
    """By hand, segment by segment: first the rows, then what does not fill them all."""
    recipe, data = prepared(
        XL, text, "data.evaluation_memory=30", "data.evaluation_clamp=25", "data.evaluation_length=5"
    )
    model = data.new_model(recipe).eval()
    assert isinstance(model, TransformerXL)
    setting = Setting(device=CPU, execution=Execution(False, False, ()), checkpoints=tmp_path)
    score = evaluate(model, data.loaders.test, recipe, setting)
    total, memory, rows = 0.0, None, 16
    with torch.no_grad(), model.evaluation(target_length=5, memory_length=30, clamp=25, same_length=True):
        for tokens, targets in data.loaders.test.batches(0):
            memory = memory if len(tokens) == rows else None
            rows = len(tokens)
            loss, memory = model(tokens, targets, memory)
            total += loss.item() * targets.numel()
    assert score.loss == pytest.approx(total / score.samples, rel=1e-6)
    assert (model.memory_length, model.target_length) == (20, 12), "training goes on as before"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], (20, 15, False)),
        (["data.evaluation_clamp=25"], (20, 25, False)),
        (["data.evaluation_memory=30"], (30, 15, True)),
        (["data.evaluation_memory=30", "data.evaluation_clamp=25"], (30, 25, True)),
    ],
)
def test_what_an_evaluation_does_not_set_is_as_in_training(
    settings: list[str], expected: tuple[int, int, bool], text: Path
) -> None:
    recipe, data = prepared(XL, text, "model.clamp=15", *settings)
    model, test = data.new_model(recipe), data.loaders.test
    assert isinstance(model, TransformerXL)
    assert isinstance(test, Evaluation)
    with test.lengths(model):
        assert (model.memory_length, model.clamp, model.same_length) == expected
    assert (model.memory_length, model.clamp, model.same_length) == (20, 15, False)


# Own models


def test_a_model_of_ones_own_needs_only_logits(text: Path) -> None:
    _, data = prepared(TABLES, text)
    model = Bigram(data.facts.model_arguments()["vocabulary"])
    assert isinstance(data.loaders.train, Windows)
    tokens, targets = next(data.loaders.train.batches(0))
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert torch.equal(NextToken(model)(tokens, targets), expected)


# Commands


def train(text: Path, out: Path, *settings: str) -> int:
    changes = [part for setting in settings for part in ("--set", setting)]
    small = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "data.length=16", "data.steps=4",
             "train.epochs=4", "data.epoch_evaluation=50"]  # fmt: skip
    typed = [part for setting in small for part in ("--set", setting)]
    return main(["train", "text-quick", "--data", str(text), "--out", str(out), "--no-report", *typed, *changes])


def test_a_run_on_a_text_file_tells_all_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "own.txt", tmp_path / "run"
    path.write_text(sentences(300), encoding="utf-8")
    assert train(path, out, "run.baseline=false") == 0
    said = capsys.readouterr().out
    for word in ("tokens/s", "bits/byte", "perplexity per word", "average in training", "FLOPs in theory, per token"):
        assert word in said
    whole = sum(json.loads((out / "config.json").read_text())["data"][part] for part in ("test", "validation")) - 2
    assert f"evaluating the final models on all {whole:,} tokens for validation and test" in said
    (sparse, *_) = json.loads((out / "result.json").read_text())["models"]
    assert sparse["language"]["test"]["tokens"] > 50, "the final models are evaluated on all"
    assert "test_accuracy" not in sparse
    assert sparse["sparsity"] == pytest.approx(0.8, abs=0.01)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all("train_accuracy" not in row and row["language"]["parameters"] for row in rows)

    assert main(["eval", str(out)]) == 0
    assert capsys.readouterr().out.count("the same") == 3
    other = tmp_path / "other.txt"
    other.write_text(sentences(100, seed=5), encoding="utf-8")
    assert main(["eval", str(out), "--data", str(other)]) == 0, "in the run's own tokens"
    said = capsys.readouterr().out
    assert "this is not the run's data" in said
    other.write_text(sentences(5), encoding="utf-8")
    assert main(["eval", str(out), "--data", str(other)]) == 0, "it is shorter than a batch of training"
    assert "the last 5 % of the text and the 5 % before them are held out for test and validation" in said


def test_a_trained_model_writes_on(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/language.md shows."""
    settings = ["data.steps=2", "train.epochs=2", "run.baseline=false", "data.epoch_evaluation=50"]
    typed = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "run"
    assert main(["train", "text-quick", "--data", str(text), "--out", str(out), "--no-report", *typed]) == 0
    (block,) = (block for block in read("docs/language.md") if "read_vocabulary" in block.text)
    capsys.readouterr()
    exec(block.text.replace("runs/text-quick-my-0001", str(out)), {})
    written = capsys.readouterr().out
    assert written.startswith("the ")
    assert len(written.replace("<unk>", "?")) == len("the ") + 100 + 1


def test_the_last_model_is_not_measured_again_as_the_best(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def measure(title: str, *args: Any) -> Any:
        measured.append(title)
        return own(title, *args)

    own = experiment._measured
    monkeypatch.setattr(experiment, "_measured", measure)
    assert train(text, tmp_path / "run", "run.baseline=false") == 0
    assert measured == ["AC/DC, sparse", "AC/DC, dense twin"]
    sparse, best, _ = json.loads((tmp_path / "run" / "result.json").read_text())["models"]
    assert sparse["best"]["epoch"] == 3
    same = {"model": sparse["model"], "file": sparse["file"], "best": sparse["best"]}
    assert (best["model"], best["file"]) == ("AC/DC, sparse, best", "sparse-best.safetensors")
    assert {**best, **same, "mask_sparsity": sparse["mask_sparsity"]} == sparse
    assert best["best"] is None
    assert main(["eval", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["data.length=17"], "data.length = 17: the model has positions for 16 tokens (model.context)"),
        (["data.evaluation_length=17"], "data.evaluation_length = 17: the model has positions for 16 tokens"),
        (["train.batch_size=100000"], "more than the"),
        (["data.tokens=letters"], "data.tokens = \"letters\": expected one of 'words', 'characters', 'bpe'"),
        (["data.flip=true"], "data.flip = true: not available for text"),
        (["train.label_smoothing=0.1"], "train.label_smoothing = 0.1: not available for text"),
        (["model.name=resnet20", "model.layers=", "model.width=", "model.heads=", "model.context="], "an image model"),
        (["data.vocabulary=none.json"], "there is no such file"),
        (["data.evaluation_memory=30"], "data.evaluation_memory = 30: this model has no memory"),
        (["data.evaluation_clamp=30"], "data.evaluation_clamp = 30: this model has no memory"),
    ],
)
def test_bad_settings_are_refused(
    settings: list[str], why: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(text, tmp_path / "run", *settings) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Diverging(Bigram):
    """A bigram model whose eighth batch has an infinite loss."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.layer = nn.Linear(vocabulary, vocabulary, bias=False)
        self.batches = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.batches += self.training and torch.is_grad_enabled()
        return self.layer(super().forward(tokens)) * (math.inf if self.batches == 8 else 1)


def test_a_run_that_diverges_before_it_prunes_says_so(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AC/DC prunes gradually, inside an epoch, before the loss of that epoch is looked at."""
    settings = ["model.name=tests.train.test_language:Diverging", "run.baseline=false", "train.epochs=6"]
    settings += ["data.steps=6", "model.layers=", "model.width=", "model.heads=", "model.context="]
    assert train(text, tmp_path / "run", *settings) == 1
    said = capsys.readouterr().err
    assert "weights to prune are not finite: layer.weight (" in said
    assert "Resuming would diverge again. Start a new run with a lower --lr, such as --lr 0.0003." in said


def test_a_memory_needs_a_text_in_order(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["--data", str(text), "--out", str(tmp_path / "run"), "--set", "data.order=windows"]
    assert main(["train", "wikitext2-transformer-xl", *typed, "--set", "train.batch_size=4"]) == 2
    assert 'data.order = "windows": this model has a memory' in capsys.readouterr().err


def test_language_models_are_refused_for_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "digits", "--no-timing", "--set", "model.name=gpt-10m"]) == 2
    assert "a language model, but the data are images" in capsys.readouterr().err


def test_a_run_is_not_resumed_on_another_text(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another vocabulary, and the same one with other text, each with its own message; nothing is changed."""
    out = tmp_path / "run"
    assert train(text, out, "run.baseline=false", "run.keep=9", "run.checkpoint_every=1ep") == 0
    (out / "result.json").unlink()
    before = (out / "metrics.jsonl").read_bytes()
    original = (text / "train.txt").read_text(encoding="utf-8")
    *lines, one, two = original.splitlines(keepends=True)
    assert one != two
    for content, why in (
        (original + "Ωmega\n", "its vocabulary was another one"),
        ("".join((*lines, two, one)), "the number of tokens is the same, but the text is another one"),
    ):
        (text / "train.txt").write_text(content, encoding="utf-8")
        capsys.readouterr()
        assert main(["train", "--resume", str(out), "--data", str(text)]) == 2
        assert why in capsys.readouterr().err
        assert (out / "metrics.jsonl").read_bytes() == before


def test_weights_of_another_vocabulary_are_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model file from a run with other tokens, put into this run's folder."""
    other = folder(tmp_path / "other")
    (other / "train.txt").write_text(sentences(300) + "0123456789\n", encoding="utf-8")
    for where, out in ((text, tmp_path / "one"), (other, tmp_path / "two")):
        assert train(where, out, "run.baseline=false") == 0
    (tmp_path / "one" / "sparse.safetensors").write_bytes((tmp_path / "two" / "sparse.safetensors").read_bytes())
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "one"), "--file", "sparse"]) == 2
    assert "embedding.weight is" in capsys.readouterr().err
