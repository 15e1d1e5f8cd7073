"""acdc ls: everything that can be named, and nothing else."""

import io
import sys

import pytest

from acdc import criteria, data, methods, models
from acdc.cli import main
from acdc.recipes import load
from acdc.schedule import Schedule


def listed(capsys: pytest.CaptureFixture[str], *what: str) -> dict[str, str]:
    """Lines of the table by their first word."""
    assert main(["ls", *what]) == 0
    rows = capsys.readouterr().out.partition("---")[2].partition("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: line for line in rows}


def test_recipes_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys)
    assert set(rows) == set(load.shipped())
    assert rows["cifar100-wrn28-10"].split()[1:4] == ["wrn28_10", "cifar100", "200"]
    assert "AC/DC-20" in rows["cifar100-wrn28-10"]
    assert listed(capsys, "recipes") == rows
    for name, row in rows.items():  # as they are read to be trained
        recipe = load.read(name)
        assert row.split()[1:4] == [recipe.model.name, recipe.data.name, str(recipe.epochs)]
        assert row.endswith(recipe.about)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("models", models.names()),
        ("data", data.names()),
        ("schedules", tuple(Schedule.named())),
        ("methods", (*methods.names(), "dense")),
        ("criteria", criteria.names()),
    ],
)
def test_other_lists(capsys: pytest.CaptureFixture[str], what: str, names: tuple[str, ...]) -> None:
    rows = listed(capsys, what)
    assert tuple(rows) == names
    assert all(len(row.split()) > 3 for row in rows.values()), "each says what it is"


def test_schedules_have_their_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "schedules")["cifar100_14"].split()[-3:] == ["225", "75", "150"]


def test_output_is_plain_where_it_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["ls", "models"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.endswith(" ") for line in out.splitlines())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plain", [True, False])
def test_no_color_is_plain_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1") if plain else monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["ls"]) == 0
    out = terminal.getvalue()
    assert ("\x1b" not in out) == plain
    assert all(name in out for name in load.shipped())


def test_an_unknown_list_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ls", "optimizers"])
    assert caught.value.code == 2
    assert "recipes" in capsys.readouterr().err


def test_every_verb_is_there_and_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    for verb in ("train", "check", "eval", "ls", "show", "cp", "doctor"):
        assert f"\n    {verb} " in out
        with pytest.raises(SystemExit) as caught:
            main([verb, "--help"])
        assert caught.value.code == 0
        assert "usage" in capsys.readouterr().out


def test_a_method_s_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "methods", "rigl"]) == 0
    assert "Rigging the Lottery" in capsys.readouterr().out
    assert main(["ls", "methods", "rigle"]) == 2
    assert "did you mean rigl?" in capsys.readouterr().err
    assert main(["ls", "models", "resnet20"]) == 2
    assert "only methods and criteria have cards" in capsys.readouterr().err


def test_a_criterion_s_card_names_its_knobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "criteria", "woodfisher"]) == 0
    card = capsys.readouterr().out
    assert "Woodbury" in card
    assert card.endswith("Knobs: steps = 100, block = 50, damping = 1e-05, update = True\n")
    assert main(["ls", "criteria", "snip"]) == 0
    assert "loss = cross_entropy" in capsys.readouterr().out
    assert main(["ls", "criteria", "woodfish"]) == 2
    assert "did you mean woodfisher?" in capsys.readouterr().err


def test_ctrl_c_while_a_verb_is_imported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("acdc.cli.import_module", interrupted)
    assert main(["ls"]) == 130
    assert capsys.readouterr().err == "\nacdc: stopped\n"
