"""Reading recipes: values, settings on top, and every mistake at once."""

import json
import pickle
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from acdc.methods.acdc import ACDC
from acdc.recipes import load
from acdc.recipes.load import RecipeError, parse_value
from acdc.recipes.schema import limits_of, read_pattern, tables
from acdc.schedule import Schedule
from acdc.sparsity.patterns import NM, Block, Channel, Unstructured

WHOLE = """
about = "a recipe"
[model]
name = "wrn28_10"
dropout = 0.1
[data]
name = "cifar100"
[train]
epochs = 20
[method]
sparsity = 0.9
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "mine.toml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def problems(name: str, *settings: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load.read(name, settings)
    return list(caught.value.problems)


def only(name: str, *settings: str) -> str:
    (problem,) = problems(name, *settings)
    return problem


# Values


def test_a_file_is_read_with_defaults_for_the_rest(write) -> None:
    recipe = load.read(write(WHOLE))
    assert (recipe.name, recipe.about, recipe.epochs) == ("mine", "a recipe", 20)
    assert recipe.model.options == {"dropout": 0.1}
    assert recipe.schedule() == ACDC(sparsity=0.9, epochs=20).schedule
    assert recipe.optimizer.momentum == 0.9
    assert recipe.run.seeds == (0,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.9", 0.9),
        (".9", 0.9),
        ("5.", 5.0),
        ("-.5e-3", -0.0005),
        ("1e-3", 1e-3),
        ("7", 7),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"0.9"', "0.9"),
        ("2:4", "2:4"),
        ("imagenet_150", "imagenet_150"),
        ('{ warmup = "1ep" }', {"warmup": "1ep"}),
        ("", ""),
        (".", "."),
    ],
)
def test_values_are_toml_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_settings_change_the_file_the_last_one_last(write) -> None:
    recipe = load.read(write(WHOLE), ["optimizer.lr=0.5", "model.dropout=0.2", "data.flip=true", "optimizer.lr=.25"])
    assert (recipe.optimizer.lr, recipe.model.options, recipe.data.flip) == (0.25, {"dropout": 0.2}, True)


def test_an_empty_setting_is_the_default(write) -> None:
    assert load.read(write(WHOLE + "[run]\nkeep = 7\n"), ["run.keep="]).run.keep == 2


@pytest.mark.parametrize("name", load.shipped())
def test_a_recipe_survives_config_json(name: str) -> None:
    recipe = load.read(name)
    assert load.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("unstructured", Unstructured()),
        (" channel ", Channel()),
        ("2:4", NM(2, 4)),
        ("1:16", NM(1, 16)),
        ("block  4x8", Block(4, 8)),
    ],
)
def test_patterns(text: str, pattern: object) -> None:
    assert read_pattern(text) == pattern


# What gives way


def test_epochs_take_the_place_of_a_schedule_of_fixed_length() -> None:
    recipe = load.read("cifar100-wrn28-10", ["train.epochs=20"])
    assert recipe.schedule() == Schedule.for_epochs(20)


def test_a_schedule_takes_the_place_of_epochs() -> None:
    assert load.read("digits", ["method.schedule=imagenet_150"]).epochs == 150


def test_knobs_without_a_total_go_with_the_epochs(write) -> None:
    knobs = 'method.schedule={ warmup = "4ep", sparse = "2ep", dense = "2ep", final_sparse = "4ep" }'
    assert load.read(write(WHOLE), [knobs]).epochs == 20


def test_groups_of_layers_have_their_own_sparsity(write) -> None:
    groups = '[method.distribution]\n"stem.*" = { global = 0.5 }\nfc = 0.25\n'
    recipe = load.read(write(WHOLE + groups), ["method.embeddings=true"])
    method = recipe.build_method()
    assert method is not None
    assert method.distribution == {"stem.*": {"global": 0.5}, "fc": 0.25}
    assert method.embeddings
    assert recipe.prunes_embeddings
    assert not load.read("digits").prunes_embeddings
    assert load.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_a_pattern_that_fixes_the_sparsity_takes_its_place(write) -> None:
    file = write(WHOLE + 'distribution = "uniform"\n')
    for recipe in (load.read(file, ["method.pattern=2:4"]), load.read("digits", ["method.pattern=2:4"])):
        assert (recipe.method.sparsity, recipe.method.distribution) == (0.5, None)
        method = recipe.build_method()
        assert method is not None
        assert method.pattern == NM(2, 4)


def test_two_settings_that_contradict_each_other_are_refused() -> None:
    assert "NM(n=2, m=4) fixes it at 0.5" in only("digits", "method.pattern=2:4", "method.sparsity=0.9")
    text = only("digits", "train.epochs=30", "method.schedule=imagenet")
    assert text.startswith("train.epochs = 30: method.schedule lasts 100 epochs")


FOUR = 'method.schedule={ warmup = "1ep", sparse = "1ep", dense = "1ep", final_sparse = "1ep"'


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (["train.epochs=3", FOUR + " }"], "1ep too much; write train.epochs = 4"),
        (["train.epochs=5", FOUR + " }"], '1ep too little; write train.epochs = 4 or final_sparse="2ep"'),
        (["train.epochs=3", FOUR + ', total = "4ep" }'], "method.schedule lasts 4 epochs; omit train.epochs"),
        (
            ["train.epochs=5", FOUR + ', total = "4ep" }'],
            'omit train.epochs, or write method.schedule = "paper" for the paper\'s proportions over 5 epochs',
        ),
        (["train.epochs=3", "method.schedule=paper"], "so write epochs=4 or more"),
        (["train.epochs=", "method.schedule=paper"], 'method.schedule = "paper" takes any number; set it'),
        (["train.epochs=1", "method.name=gmp"], "a dense epoch and a sparse one, so write epochs=2 or more"),
    ],
)
def test_epochs_and_phases_that_differ_get_one_piece_of_advice(settings: list[str], advice: str) -> None:
    assert only("digits", *settings).endswith(advice)


def test_advice_on_epochs_can_be_followed() -> None:
    """What it says to write for 3 epochs and 4 epochs of phases is taken."""
    assert load.read("digits", ["train.epochs=4", FOUR + " }"]).epochs == 4
    assert load.read("digits", ["train.epochs=", FOUR + ', total = "4ep" }']).epochs == 4


def test_a_file_that_contradicts_itself_is_refused(write) -> None:
    assert "fixes it at 0.5" in only(write(WHOLE + 'pattern = "2:4"\n'))
    assert "lasts 200 epochs" in only(write(WHOLE + 'schedule = "cifar100_20"\n'))


def test_a_method_that_does_not_alternate_takes_the_place_of_phases_and_keeps_their_epochs() -> None:
    for name in ("rigl", "gmp"):
        recipe = load.read("imagenet-resnet50", [f"method.name={name}"])
        assert (recipe.epochs, recipe.method.schedule) == (100, None)
    assert load.read("imagenet-resnet50", ["method.name=rigl", "train.epochs=30"]).epochs == 30
    assert "RigL has its own phases" in only("imagenet-resnet50", "method.name=rigl", "method.schedule=imagenet")
    text = only("digits", "method.name=gmp", "method.schedule=imagenet_150")
    assert text.startswith('method.schedule = "imagenet_150": GMP has its own phases')
    assert "(method.schedule=) and set train.epochs = 150" in text


# What is refused


def test_another_method_replaces_knobs_that_it_has_not() -> None:
    assert load.read("text-quick").method.options == {"ease": 0.3}
    for name in ("dense", "gmp", "rigl"):
        settings = [f"method.name={name}", *(["run.baseline=false"] if name == "dense" else [])]
        assert load.read("text-quick", settings).method.options == {}
    assert load.read("text-quick", ["method.name=gmp", "method.end=0.6"]).method.options == {"end": 0.6}
    assert "method.ease: no such setting" in only("text-quick", "method.name=gmp", "method.ease=0.5")


def test_all_mistakes_at_once() -> None:
    found = problems(
        "cifar100-wrn28-10",
        "metod.sparsity=0.9",
        "optimizer.momentun=0.2",
        "optimizer.lr=-1",
        "train.batch_size=lots",
        "method.sparsity=95",
        "method.pattern=3",
        "method.schedule=imagenet_15",
        "model.name=wrn",
        "data.crops=4",
        "run.seeds=[1, 1]",
        "lr=3",
    )
    starts = (
        "--set lr=3: expected table.key=value; did you mean optimizer.lr?",
        "[metod]: no such table; expected one of model, data,",
        "optimizer.momentun: no such setting; expected one of name, lr,",
        'train.batch_size = "lots": expected a whole number',
        "method.pattern = 3: expected text",
        'method.schedule = "imagenet_15": expected one of imagenet, ',
        "method.sparsity=95.0: sparsity is the fraction of zeros",
        "model.name='wrn': expected one of",
        "data.crops: no such setting",
        "optimizer.lr = -1.0: expected a number above 0",
        "run.seeds = [1, 1]: expected different whole numbers",
    )
    assert len(found) == len(starts)
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start), text


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("metod.sparsity=1", "method"),
        ("optimizer.momentun=1", "momentum"),
        ("method.first-and-last-dense=true", "first_and_last_dense"),
        ("method.First_And_Last_Dense=true", "first_and_last_dense"),
        ("train.lr=1", "optimizer.lr"),
        ("method.seeds=[1]", "run.seeds"),
        ("data.crops=4", "crop"),
        ("data.batch_size=4", "train.batch_size"),
        ("data.name=cifar-10", "cifar10"),
        ("model.name=WRN-28-10", "wrn28_10"),
        ("model.dropuot=0.1", "dropout"),
        ("rate.shape=cosin", "cosine"),
        ('method.schedule={ warm = "1ep" }', "warmup"),
        ("method.schedule=CIFAR100-2O", "cifar100_20"),
        ("epochs=3", "train.epochs"),
    ],
)
def test_did_you_mean(setting: str, meant: str) -> None:
    assert any(f"did you mean {meant}?" in text for text in problems("cifar100-wrn28-10", setting))


@pytest.mark.parametrize(
    ("setting", "start"),
    [
        ("train.epochs=4.5", "train.epochs = 4.5: expected a whole number"),
        ("train.epochs=true", "train.epochs = true: expected a whole number"),
        ("data.flip=1", "data.flip = 1: expected true or false"),
        ("optimizer.lr=fast", 'optimizer.lr = "fast": expected a number'),
        ("optimizer.lr=nan", "optimizer.lr = nan: expected a number"),
        ("optimizer.name=sdg", "optimizer.name = \"sdg\": expected one of 'sgd', 'adam'"),
        ("optimizer.betas=[0.9]", "optimizer.betas = [0.9]: expected a list of 2 values"),
        ("rate.milestones=76", "rate.milestones = 76: expected a list, such as [1, 2]"),
        ('rate.milestones=["a"]', "rate.milestones = ['a']: expected a list, each item a number"),
        ("method.schedule=5", "method.schedule = 5: expected text or a table"),
        ("model.name=5", "model.name = 5: expected text"),
        ("model.classes=5", "model.classes: the data determines it; remove it"),
        ("train.ema=1", "train.ema = 1.0: expected between 0 and 1"),
        ("train.clip_norm=0", "train.clip_norm = 0.0: expected a number above 0"),
        ("train.batch_size=0", "train.batch_size = 0: expected 1 or more"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay = -1.0: expected 0 or more"),
        ("rate.warmup=-1", "rate.warmup = -1.0: expected epochs, 0 or more"),
        ("run.keep=0", "run.keep = 0: expected checkpoints, 1 or more"),
        ("run.checkpoint_every=10%", 'run.checkpoint_every = "10%": expected epochs or steps'),
        ("run.checkpoint_every=often", "run.checkpoint_every='often': a duration needs a unit; write "),
        ("method.pattern=2:2", 'method.pattern = "2:2": expected "unstructured", "2:4"'),
        ("method.pattern=2:4:8", 'method.pattern = "2:4:8": expected "unstructured", "2:4"'),
        ("method.pattern=block 4", 'method.pattern = "block 4": expected "unstructured"'),
        ("method.distribution=even", "method.distribution='even': expected one of 'global', 'uniform', 'erk'"),
        ("method.distribution.fc=2", "method.distribution['fc']=2: sparsity is the fraction of zeros"),
        ("method.distribution.fc.global=2", "method.distribution['fc']['global']=2: sparsity is the fraction of zeros"),
        (
            "method.distribution.fc.even=0.5",
            "method.distribution['fc']={'even': 0.5}: a group has one of 'global', 'un",
        ),
        ("optimizer.bias_correction=false", 'optimizer.bias_correction = false: expected true unless name is "lamb"'),
        ("method.sparsity=", "method.sparsity: it is not set; set the fraction of zeros, for example"),
        ("method.sparsity=1.0", "method.sparsity=1.0: sparsity is the fraction of zeros"),
        ("data.split_seed=-1", "data.split_seed = -1: expected a whole number from 0 to 4294967295"),
        ("data.split_seed=0.5", "data.split_seed = 0.5: expected a whole number"),
        ("train.epochs=0", "train.epochs=0: expected a whole number, 1 or more"),
        ("data.split=1", "data.split: no such setting"),
        ("novalue", "--set novalue: expected table.key=value"),
        ("a..b=1", "--set a..b=1: expected table.key=value"),
    ],
)
def test_one_mistake_gets_one_answer(setting: str, start: str) -> None:
    assert only("digits", setting).startswith(start)


def test_dense_training_has_neither_a_baseline_nor_a_twin() -> None:
    found = problems("digits", "method.name=dense")
    assert [text.partition(";")[0] for text in found] == [
        'run.baseline = true: method.name = "dense" has none',
        'run.finetune = true: method.name = "dense" has none',
    ]


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ('{ warmup = "4ep" }', "method.schedule: sparse, dense, final_sparse not set"),
        (
            '{ warmup = "4ep", sparse = "5ep", dense = "5ep", final_sparse = "5ep" }',
            "train.epochs = 40: it must equal warmup + n x (sparse + dense)",
        ),
        ('{ warmup = "4", sparse = "5ep", dense = "5ep", final_sparse = "5ep" }', "method.schedule.warmup='4'"),
        (
            '{ warmup = "4st", sparse = "2st", dense = "2st", final_sparse = "4st", total = "20st" }',
            'method.schedule.total = "20st": expected whole epochs',
        ),
        (
            '{ warmup = "4ep", sparse = "2ep", dense = "2ep", final_sparse = "4.5ep", total = "20.5ep" }',
            'method.schedule.total = "20.5ep": expected whole epochs',
        ),
    ],
)
def test_phases_that_do_not_fit(knobs: str, said: str) -> None:
    assert only("digits", f"method.schedule={knobs}").startswith(said)


def test_folders_of_images_take_no_crop_or_random_labels() -> None:
    found = problems("imagenet-resnet50", "data.crop=4", "data.corrupt=10", "data.sise=160")
    assert [text.partition(":")[0] for text in found] == ["data.corrupt = 10", "data.crop = 4", "data.sise"]
    assert "did you mean size?" in found[2]


def test_files(write, tmp_path: Path) -> None:
    assert "this is not TOML" in only(write("[model\nname = 3"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "this is not TOML: it is not text in UTF-8" in only(str(tmp_path / "bytes.toml"))
    assert "there is no such file" in only(str(tmp_path / "gone.toml"))
    assert "end in .toml; rename it to plain.toml" in only(write(WHOLE, "plain"))
    assert "did you mean cifar100-wrn28-10?" in only("cifar100-wrn28")
    assert only("zzz") == "no recipe has this name; `acdc ls` lists them"


def test_tables_of_the_wrong_form(write) -> None:
    found = problems(write('lr = 3\nmodel = "resnet20"\nabout = 7\n[data]\n[paper]\nsparse = 3\n'))
    assert [text.split(":")[0].split(" is ")[0] for text in found] == [
        "lr",
        'model = "resnet20"',
        "data.name",
        "about = 7",
        "paper",
    ]
    assert "did you mean optimizer.lr?" in found[0]
    assert 'for example data.name = "cifar10"' in found[2]


@pytest.mark.parametrize(
    ("setting", "table", "key"),
    [
        ("data.crops=4", "data", "crops"),
        ("data.name=cifar-10", "data", "name"),
        ("train.batch_size=0", "train", "batch_size"),
        ("train.batch_size=lots", "train", "batch_size"),
        ("run.seeds=[1, 1]", "run", "seeds"),
        ("model.name=wrn", "model", "name"),
        ("model.dropuot=0.1", "model", "dropuot"),
        ("method.sparsity=2", "method", "sparsity"),
        ("method.sparsity=", "method", "sparsity"),
        ("method.distribution.fc=2", "method", "distribution"),
        ("train.epochs=0", "train", "epochs"),
        ("novalue", "", ""),
    ],
)
def test_a_mistake_knows_its_setting_and_can_travel(setting: str, table: str, key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load.read("digits", [setting])
    (finding,) = caught.value.findings
    assert (finding.table, finding.setting.partition(".")[2]) == (table, key)
    there = pickle.loads(pickle.dumps(caught.value))  # as from one rank to another
    assert (str(there), there.findings[0].setting) == (str(caught.value), finding.setting)
    assert (there.source, there.recipe) == ("digits", caught.value.recipe)


def test_an_error_names_its_source_and_has_a_line_for_each_mistake(write) -> None:
    file = write(WHOLE)
    with pytest.raises(RecipeError) as caught:
        load.read(file, ["train.lr=1", "run.keep=0"])
    first, *rest = str(caught.value).splitlines()
    assert first == f"{file}:"
    assert len(rest) == 2
    assert all(line.startswith("  ") for line in rest)


# Numbers and texts that no setting is


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer.lr=1e308", "optimizer.lr = 1e+308: expected a number above 0, such as 0.1, and at most 1e+36"),
        (f"optimizer.lr={'9' * 400}", ": expected a number with fewer digits"),
        (f"optimizer.lr={'9' * 5_000}", '…": expected a number'),
        (f"train.epochs={'9' * 400}", ": expected a number with fewer digits"),
        ("train.epochs=1000000000", "train.epochs = 1000000000: expected 1 or more, and at most 100,000"),
        ("train.threads=-5", "train.threads = -5: expected 0 or more, such as 4"),
        ("train.threads=1000000", "train.threads = 1000000: expected 0 or more, such as 4, and at most 1,024"),
        ("data.crop=100000", "data.crop = 100000: expected pixels, 0 or more, and at most 1,024"),
        ("rate.milestones=[1e9]", "expected epochs, such as [60], and at most 100,000"),
        (f"rate.milestones={'[' * 5_000}", '…": expected a list, such as [1, 2]'),
        (f"method.include={'[' * 12 + ']' * 12}", ": expected tables and lists nested at most 10 deep"),
        (f"run.checkpoint_every={'9' * 400}ep", 'durations have at most 40 characters; write "10ep" for epochs'),
        (f"run.checkpoint_every={'9' * 5_000}ep", 'durations have at most 40 characters; write "10ep" for epochs'),
        ("run.checkpoint_every=100001ep", 'run.checkpoint_every = "100001ep": expected epochs or steps'),
        (f"model.width={'9' * 400}", ": expected a number with fewer digits"),
        ("model.width=nan", "model.width = nan: expected a number"),
        ("model.width=1979-05-27", "expected a number, text, true or false, a list or a table"),
        (f"run.seeds={list(range(1001))}", "expected at most 1,000 of them"),
    ],
)
def test_what_would_fail_far_from_here_is_refused(setting: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load.read("digits", [setting])
    (problem,) = caught.value.problems
    assert problem.startswith(setting.partition("=")[0])
    assert said in problem
    assert len(problem) < 300


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"x = {'[' * 5_000}", "this is not TOML: brackets are nested too deeply"),
        (f"x = {'9' * 5_000}", "it contains a number with thousands of digits; write a shorter one"),
        (
            "about = {" + "a." * 2_000 + "a = 1}",
            "about = {'a': {'a': {'a': {'a': {'a': {'a': {...}}}}}}}: expected text",
        ),
    ],
)
def test_a_file_that_python_cannot_take_in_is_refused(write, text: str, said: str) -> None:
    assert any(problem.startswith(said) for problem in problems(write(text)))


def test_every_number_of_a_recipe_has_a_range() -> None:
    """But those that depend on others, which validate.py looks at, and the sparsity, which methods check."""
    numbers, limited = set(), set()
    for table, part in tables().items():
        plain, annotated = get_type_hints(part), get_type_hints(part, include_extras=True)
        numbers |= {f"{table}.{key}" for key, hint in plain.items() if {int, float} & {hint, *get_args(hint)}}
        limited |= {f"{table}.{key}" for key, hint in annotated.items() if limits_of(hint)}
    assert numbers - limited == {"train.accumulate", "method.sparsity"}
    assert limited <= numbers
