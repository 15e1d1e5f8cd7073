import pytest
import torch

import acdc
from acdc.methods.rigl import RigL
from tests.methods.tiny import Tiny, sparse_for
from tests.warned import warned


def method(**knobs) -> RigL:
    return RigL(**{"sparsity": 0.5, "distribution": "uniform", "schedule": sparse_for(8), "every": "2st", **knobs})


def test_by_hand():
    """4 of 8 kept. At step 2 of T_end = 8 with α = .6: ζ = .3 (1 + cos π/4) = .51, so ⌊2.05⌋ = 2 are replaced."""
    t = Tiny(method(drop=0.6, end=1.0), [0] * 8)
    t.step()
    t.mask("11110000")
    t.set([4, -1, 3, 2, 0, 0, 0, 0])
    t.step([0, 0, 0, 0, 0.1, -0.9, 0.5, 0.3])  # of pruned weights only: nothing moves
    assert t.weights == [4, -1, 3, 2, 0, 0, 0, 0]
    t.begin()
    assert t.masks == "10100110", "2 and −1 are dropped; −.9 and .5 are the largest gradients"
    assert t.weights == [4, 0, 3, 0, 0, 0, 0, 0], "what grows starts at 0"
    t.step([1, 1, 1, 1, 1, -0.9, 0.5, 1])
    assert t.weights == [3, 0, 2, 0, 0, 0.9, -0.5, 0]


def test_what_grows_has_no_momentum():
    t = Tiny(method(end=1.0, drop=0.6), [0] * 8, momentum=0.5)
    t.step()
    t.mask("11110000")
    t.set([4, 1, 3, 2, 0, 0, 0, 0])
    t.step([1, 1, 1, 1, 9, 8, 0, 0])
    t.begin()
    assert t.masks == "10101100"
    assert t.momentum == [1, 0, 1, 0, 0, 0, 0, 0]


def test_clipping_sees_masked_gradients_also_where_whole_ones_are_looked_at():
    """Kept gradients are 3 and 4, of norm 5; pruned ones would make it larger. Both are seen: by whom they concern."""
    t = Tiny(method(drop=0.6, end=1.0), [0] * 8)
    t.step()
    t.mask("11110000")
    t.set([4, -1, 3, 2, 0, 0, 0, 0])
    t.sparsifier.begin_step()
    assert t.sparsifier.context.observing
    t.params[0].grad = torch.tensor([[3.0, 0, 4, 0, 1, -90, 50, 3]])
    t.sparsifier.mask_gradients()
    assert float(torch.nn.utils.clip_grad_norm_(t.params, 2.5)) == 5
    t.optimizer.step()
    assert t.weights == [2.5, -1, 1, 2, 0, 0, 0, 0]
    t.begin()
    assert t.masks == "10010110", "−1 and 1 are dropped; −90 and 50 grow"


def test_gradients_kept_for_a_skipped_step_are_not_the_next_one_s():
    t = Tiny(method(drop=0.6, end=1.0), [0] * 8)
    t.step()
    t.mask("11110000")
    t.set([4, -1, 3, 2, 0, 0, 0, 0])
    for pruned in ([torch.inf, 0, 0, 0], [0, 1, 2, 0]):  # of the first, a gradient scaler makes no step
        t.sparsifier.begin_step()
        t.params[0].grad = torch.tensor([[0.0] * 4 + pruned])
        t.sparsifier.mask_gradients()
    t.optimizer.step()
    t.begin()
    assert t.masks == "10100110"


def test_an_update_whose_gradients_were_skipped_is_made_up_for():
    """A gradient scaler skips steps 9 and 11, and acdc train counts them: the update of step 10 comes at 13."""
    t = Tiny(method(drop=0.6, end=1.0, every="10st", schedule=sparse_for(80)), [0] * 8)
    t.step()
    t.mask("11110000")
    t.set([4, -1, 3, 2, 0, 0, 0, 0])
    s = t.sparsifier
    s.set_step(9)
    assert s.context.observing
    s.set_step(10)
    t.step([0, 0, 0, 0, 9, 9, 0, 0])
    assert (s.step, s.context.observing) == (11, True)
    s.set_step(12)  # and again
    t.step([0, 0, 0, 0, 0, 1, 2, 0])
    assert t.masks == "11110000"
    t.begin()
    assert t.masks == "10100110"
    assert not s.context.memory
    t.step([0, 0, 0, 0, 9, 9, 9, 9])
    assert not s.context.observing, "the next is due at step 20"


def test_a_run_too_short_to_update_says_so():
    """T_end = ⌊.75 · 80⌋ = 60 comes before step 100."""
    with warned() as messages:
        Tiny(RigL(sparsity=0.5, distribution="uniform", schedule=sparse_for(80)), [1, 2])
    assert messages == [
        'every="100st": the first update of RigL is due at step 100, but its last may be at step 60 of 80, so the '
        'masks would never change; for about ten updates write every="6st", or train longer'
    ]
    with warned() as messages:
        Tiny(RigL(sparsity=0.5, distribution="uniform", schedule=sparse_for(134)), [1, 2])
    assert not messages


@pytest.mark.parametrize(
    ("name", "every", "total", "says"),
    [
        ("set", "10st", 10, True),  # the last step is 9
        ("set", "9st", 10, False),
        ("snfs", "10st", 10, True),
        ("snfs", "9st", 10, False),
        ("deepr", "10st", 10, True),
        ("deepr", "9st", 10, False),
        ("top_kast", "10st", 10, True),
        ("top_kast", "9st", 10, False),
        ("static", None, 10, False),
        ("rigl", "1st", 1, True),
    ],
)
def test_the_same_of_methods_alike(name, every, total, says):
    knobs = {"every": every} if every else {}
    with warned() as messages:
        t = Tiny(acdc.methods.build(name, sparsity=0.5, schedule=sparse_for(total), **knobs), [1, 2, 3, 4])
    assert bool(messages) == says
    updates = any(t.sparsifier.method.updates_at(t.sparsifier.context, step) for step in range(1, total))
    assert updates != says or name == "static"


def test_the_share_falls_as_a_cosine():
    rigl = method(drop=0.3)
    assert [rigl.fraction_at(step, 100) for step in (0, 50, 100)] == pytest.approx([0.3, 0.15, 0])


def test_no_update_after_the_end():
    """.5 · 8 steps: step 4 is the last, and there ζ is 0; steps 6 and later see no dense gradient either."""
    t = Tiny(method(end=0.5, drop=1.0), [0] * 8)
    s = t.sparsifier
    assert [step for step in range(9) if s.method.updates_at(s.context, step)] == [2, 4]
    assert [step for step in range(9) if s.method.observes_at(s.context, step)] == [1, 3]
    for _ in range(4):
        t.step([1, 2, 3, 4, 5, 6, 7, 8])
    masks = t.masks
    for _ in range(4):
        t.step([8, 7, 6, 5, 4, 3, 2, 1])
        assert t.masks == masks
        assert "gradients" not in s.context.memory


def test_where_few_can_grow_few_are_dropped():
    """3 of 4 kept: ζ = 1 would replace 3, but one place is free."""
    t = Tiny(method(sparsity=0.25, drop=1.0, end=1.0, every="1st", schedule=sparse_for(100)), [0] * 4)
    t.step()
    t.mask("1110")
    t.set([3, 1, 2, 0])
    t.sparsifier.context.memory["gradients"] = {"0.weight": t.params[0].detach() * 0 + 1}
    t.begin()
    assert t.masks == "1011"


def test_equal_weights_and_gradients_keep_the_count():
    t = Tiny(method(end=1.0), [0] * 8)
    for _ in range(8):
        t.step()
        assert t.masks.count("1") == 4


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"distribution": "global"}, r"distribution='global': RigL starts from random masks.*write distribution='erk'"),
        ({"drop": -0.1}, r"drop=-0\.1: expected a fraction"),
        ({"drop": 1.1}, r"drop=1\.1: expected a fraction .* write drop=0\.3"),
        ({"end": 0}, r"end=0: updates must end after they begin; write end=0\.75, or use Static"),
        ({"end": -1}, r"end=-1: expected a fraction"),
        ({"every": "0st"}, r"every='0st': .* write every=\"1st\""),
        ({"every": "1%"}, r"every='1%': it cannot be a percentage"),
        ({"seed": -1}, r"seed=-1: expected a whole number, 0 or more; write seed=0"),
        (
            {"pattern": acdc.Channel()},
            r"pattern=Channel\(\): RigL prunes single weights; omit pattern, or use ACDC",
        ),
        ({"sparsity": 80}, r"for 80 % write sparsity=0\.8"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        method(**knobs)


def test_a_closure_is_refused_in_steps_whose_gradients_it_looks_at():
    """It would see those of the step before: a closure's are not there yet."""
    t = Tiny(method(), [0] * 8)
    t.step()
    t.sparsifier.begin_step()
    assert t.sparsifier.context.observing
    with pytest.raises(RuntimeError, match=r"rigl looks at gradients before the optimizer's step.*call the closure"):
        t.optimizer.step(lambda: None)


@pytest.mark.parametrize("name", [name for name in acdc.methods.names() if name not in ("acdc", "quantised")])
def test_methods_that_do_not_alternate_refuse_phases_that_do(name):
    knobs = {} if name in ("str", "sparse_vd", "sr_ste") else {"sparsity": 0.5}
    with pytest.raises(ValueError, match=r"schedule=.*omit it and write epochs=100"):
        acdc.methods.build(name, schedule=acdc.Schedule.imagenet(), **knobs)
