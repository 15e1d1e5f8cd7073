"""A run: its stages in order, the folder they fill, and the table at the end.

dense      a dense baseline, if the recipe asks for one, or the only stage if its method is "dense"
acdc       the method, under its name, from the same initial weights
finetune   the dense twin, fine-tuned over the epochs of the final compressed phase
"""

import contextlib
import datetime
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from acdc import methods
from acdc.core.result import DENSE, SPARSE, Result, StateDict, finetune_dense, to_cpu, writer_for
from acdc.data.data_facts import ImageFacts
from acdc.data.random_labels import save_indices
from acdc.io import write_files, write_json
from acdc.measure.dynamics import count_model, count_parameters
from acdc.measure.predict import size_shares
from acdc.recipes.fit import count_uses
from acdc.recipes.schema import Recipe
from acdc.runs import predictions
from acdc.runs.checkpoint import Checkpoint, MismatchError
from acdc.runs.folder import BASELINE, FINETUNED, RunFolder
from acdc.runs.json_files import require
from acdc.runs.records import BestEpoch, EpochRow, LanguageResult, ModelResult, RunConfig, RunResult, as_json
from acdc.sparsity import packed
from acdc.train import hardware
from acdc.train.console import Console
from acdc.train.distributed import skipped_images
from acdc.train.evaluate import Score, evaluate, recalibrate
from acdc.train.execution import Setting
from acdc.train.loading import LoadedData
from acdc.train.prepare import STAGE_TITLES, PreparedRun
from acdc.train.stage import Stage
from acdc.typed_data import decode

_FEW = 2_000_000  # test images x classes up to which a run keeps every model's logits: 8 MB each


def run(
    prepared: PreparedRun, setting: Setting, out: Path, console: Console, *, resume: Checkpoint | None = None
) -> list[ModelResult]:
    """Run all remaining stages, and write the folder `out`."""
    recipe, data = prepared.recipe, prepared.data
    start, on_rank_zero = time.perf_counter(), setting.world.on_rank_zero
    on_rank_zero(lambda: _begin(prepared, setting, out, resume))
    before = resume.state["extra"]["seconds"] if resume else 0.0
    outcomes = [decode(ModelResult, row) for row in resume.state["extra"]["outcomes"]] if resume else []
    lines = on_rank_zero(RunFolder(out).lines)  # kept in memory: the files may be damaged meanwhile
    with reproducible(recipe, setting.device):
        for outcome in _stages(prepared, setting, out, console, resume, outcomes, lines, start - before):
            outcomes.append(outcome)
    result = RunResult(
        models=tuple(outcomes),
        seconds=time.perf_counter() - start + before,
        unreadable_test_images=unreadable(outcomes, data.loaders.test.samples),
    )
    table = {**asdict(result), "models": list(map(as_json, outcomes))}
    on_rank_zero(lambda: write_json(RunFolder(out).result, table))
    return outcomes


def unreadable(outcomes: Sequence[ModelResult], test_images: int) -> int:
    """Count the test images that no model could be evaluated on."""
    judged = [outcome.test_images for outcome in outcomes if outcome.test_images is not None]
    return test_images - min(judged) if judged else 0


def _stages(
    prepared: PreparedRun,
    setting: Setting,
    out: Path,
    console: Console,
    resume: Checkpoint | None,
    outcomes: list[ModelResult],
    lines: dict[str, str],
    began: float,
) -> Iterator[ModelResult]:
    recipe, data = prepared.recipe, prepared.data
    on_rank_zero, result = setting.world.on_rank_zero, None
    uses: dict[str, float] = {}
    sizes, shares = data.loaders.train.sizes, dict[int, float]()
    parameters: list[int] = []  # of the stage before
    for index, (name, planned) in enumerate(prepared.plan.items()):
        if resume and index < resume.state["stage"]:
            continue
        method = prepared.method if name not in STAGE_TITLES else None
        torch.manual_seed(recipe.run.seeds[0] + setting.world.rank * 7919)  # dropout differs between ranks
        model = data.new_model(recipe, setting.world.size).to(setting.device)
        uses = uses or count_uses(model, data.facts)
        if sizes and not shares and isinstance(data.facts, ImageFacts):
            shares = size_shares(model, uses, sizes, data.facts.shape)
        if recipe.train.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        stage = Stage(index, name, model, data.loaders, recipe, setting, uses=uses, size_shares=shares, method=method)
        stage.extra = partial(_of_the_run, stage, outcomes, lines, began)
        if resume and index == resume.state["stage"]:
            _resume(stage, resume)
        elif name == "finetune":
            assert result is not None, "the method's stage has just ended, or a checkpoint of this one was loaded"
            finetune_dense(result, model, stage.optimizer)
            stage.epoch = planned.first  # the final phase's epochs and rates, wherever the best twin comes from
            stage.parameters = parameters[: planned.first]
            stage.save()
        for row in stage.run():
            on_rank_zero(partial(_tell, row, stage, setting, out, console, lines))
        result, parameters = _finish(stage), stage.parameters
        if (both := _unmeasured(data)) is not None:
            console.say(f"evaluating the final models on all {both:,} tokens for validation and test")
        kept: dict[str, predictions.Made] = {}
        last: tuple[StateDict, ModelResult, torch.Tensor | None] | None = None
        for title, file, weights in _recalibrated(_models(stage, result), stage, data, setting):
            masks = result.masks if result and file == SPARSE else {}
            if last and file == _suffixed(last[1].file, "best") and _equal(last[0], weights):  # the last is the best
                outcome = replace(last[1], model=title, file=file, best=None, mask_sparsity=None)
                logits = last[2].clone() if last[2] is not None else None  # safetensors stores no tensor twice
            else:
                outcome, logits = _measured(title, file, weights, stage, data, setting, uses, masks)
            if last is None:
                last = weights, outcome, logits
            on_rank_zero(partial(write_files, {out / file: partial(writer_for(file), tensors=weights)}))
            if logits is not None:
                kept[Path(file).stem] = predictions.Made(logits, tuple(data.loaders.test.unread))
            yield outcome
        if kept:
            on_rank_zero(partial(predictions.add, out, kept))
        if result:
            on_rank_zero(partial(packed.save, result.masks, RunFolder(out).masks))


def _resume(stage: Stage, resume: Checkpoint) -> None:
    try:
        stage.load_state_dict(resume.state)
    except ValueError as error:  # including the sparsifier's
        raise MismatchError(f"{resume.path} does not fit this run ({error})") from error
    stage.saved = resume.path


def _tell(row: EpochRow, stage: Stage, setting: Setting, out: Path, console: Console, lines: dict[str, str]) -> None:
    """Write an epoch that has ended to disk, then show it."""
    for name, line in RunFolder(out).append(row, stage.phase_end).items():
        lines[name] += line
    console.epoch(row)
    for sink in setting.sinks:
        sink(row)


def _of_the_run(stage: Stage, outcomes: list[ModelResult], lines: Mapping[str, str], began: float) -> dict[str, Any]:
    """Return what a checkpoint stores besides its stage."""
    return {
        "recipe": stage.recipe.to_dict(),
        "outcomes": list(map(as_json, outcomes)),
        "seconds": time.perf_counter() - began,
        "world": stage.setting.world.size,
        "lines": dict(lines),
    }


def _finish(stage: Stage) -> Result | None:
    if stage.sparsifier is None:
        return None
    result = stage.sparsifier.finish(gather="everywhere")  # evaluated whole, by every rank
    stage.sparsifier.detach()
    return result


def _models(stage: Stage, result: Result | None) -> Iterator[tuple[str, str, StateDict]]:
    """Yield the title, file and weights of each model that a stage produces."""
    if result is None:
        title, file = {
            "dense": (STAGE_TITLES["dense"], BASELINE),
            "finetune": ("dense twin, fine-tuned", FINETUNED),
        }[stage.name]
        yield title, file, stage.whole_model()
    else:
        title, file = f"{methods.find(stage.recipe.method.name).title()}, sparse", SPARSE
        yield title, file, result.sparse
    if stage.best_weights is not None:
        yield f"{title}, best", _suffixed(file, "best"), stage.best_weights
    if stage.ema is not None:
        yield f"{title}, average", _suffixed(file, "ema"), to_cpu(stage.ema.module.state_dict())
    if result is not None and result.dense is not None:
        yield f"{methods.find(stage.recipe.method.name).title()}, dense twin", DENSE, result.dense


def _equal(one: StateDict, other: StateDict) -> bool:
    """Return True if two models are the same, bit by bit, so that one need not be measured again."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _unmeasured(data: LoadedData) -> int | None:
    """Return the tokens on which final models are evaluated, where epochs saw fewer: that can take long."""
    loaders = data.loaders
    if loaders.test_beginning is None or loaders.validation is None:
        return None
    return loaders.test.samples + loaders.validation.samples


def _suffixed(file: str, suffix: str) -> str:
    path = Path(file)
    return f"{path.stem}-{suffix}{path.suffix}"


def _recalibrated(
    models: Iterator[tuple[str, str, StateDict]], stage: Stage, data: LoadedData, setting: Setting
) -> Iterator[tuple[str, str, StateDict]]:
    """Yield each model, followed by the same one with new batch-norm statistics if the recipe asks for it."""
    for title, file, weights in models:
        yield title, file, weights
        if stage.recipe.run.recalibrate:
            model = data.new_model(stage.recipe).to(setting.device)
            model.load_state_dict(weights)
            recalibrate(model, data.loaders.train, precision=stage.recipe.train.precision, setting=setting)
            skipped_images(data.loaders.train, setting.world)
            yield f"{title}, BN recalibrated", _suffixed(file, "recalibrated"), to_cpu(model.state_dict())


def _measured(
    title: str,
    file: str,
    weights: StateDict,
    stage: Stage,
    data: LoadedData,
    setting: Setting,
    uses: Mapping[str, float],
    masks: Mapping[str, torch.Tensor],
) -> tuple[ModelResult, torch.Tensor | None]:
    """Measure the weights as saved, in a new plain model; also return its logits, if they are few."""
    model = data.new_model(stage.recipe).to(setting.device)
    model.load_state_dict(weights)
    classes = data.facts.classes if isinstance(data.facts, ImageFacts) else None
    few = classes is not None and setting.world.size == 1 and data.loaders.test.samples * classes <= _FEW
    logits: list[torch.Tensor] | None = [] if few else None
    score = evaluate(model, data.loaders.test, stage.recipe, setting, logits)
    counts = count_model(model, uses, embeddings=stage.recipe.prunes_embeddings)
    norms = sum(p.numel() for p in model.parameters() if p.ndim == 1) - _biases(model)
    final = file in (BASELINE, SPARSE, FINETUNED)
    best = stage.best if final else stage.best_twin if file == DENSE else None
    outcome = ModelResult(
        model=title,
        file=file,
        test_accuracy=score.accuracy,
        test_loss=score.loss,
        sparsity=counts.sparsity,
        reported_sparsity=counts.zeros / (counts.size + norms),
        flops=counts.flops,
        dense_flops=counts.dense_flops,
        flops_ratio=counts.flops / counts.dense_flops,
        test_images=score.samples if score.text is None else None,
        mask_sparsity=sum(int((~mask).sum()) for mask in masks.values()) / counts.size if masks else None,
        best=BestEpoch(**best) if best else None,
        language=_language(model, score, file, stage, data, setting),
    )
    return outcome, torch.cat(logits).cpu() if logits else None


def _language(
    model: torch.nn.Module, score: Score, file: str, stage: Stage, data: LoadedData, setting: Setting
) -> LanguageResult | None:
    """Return what only language models have, with their score on the whole validation part."""
    if score.text is None:
        return None
    assert data.loaders.validation is not None, "a text always has a validation part"
    validation = evaluate(model, data.loaders.validation, stage.recipe, setting)
    assert validation.text is not None, "as for the test part"
    epochs = stage.parameters
    if file == DENSE:  # the twin is a copy made before the end
        epochs = epochs[: stage.twin_epochs]
    return LanguageResult(
        test=score.text,
        validation=validation.text,
        validation_loss=validation.loss,
        parameters=count_parameters(model),
        all_parameters=sum(param.numel() for param in model.parameters()),
        average_parameters=statistics.fmean(epochs) if epochs else None,
    )


def _biases(model: torch.nn.Module) -> int:
    """Count the biases of convolutions and linear layers: the paper's count leaves them out."""
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    return sum(m.bias.numel() for m in model.modules() if isinstance(m, kinds) and m.bias is not None)


def _begin(prepared: PreparedRun, setting: Setting, out: Path, resume: Checkpoint | None) -> None:
    """Write the files of a folder that exist before the first step: config.json, then its labels and vocabulary.

    A run that ends in between can be resumed, since it has a config.json.
    """
    recipe, data, method = prepared.recipe, prepared.data, prepared.method
    for unfinished in out.glob(".*.tmp"):  # left by a process that was killed
        unfinished.unlink(missing_ok=True)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = hardware.describe(setting.device)
    if resume:
        config = dict(require(RunConfig, RunFolder(out).config).settings)
        config["recipe"] = recipe.to_dict()  # changed settings, such as data.bad_limit, apply from here on
        config.setdefault("resumed", []).append({"at": now, "from": resume.path.name, **where})
    else:
        config = {
            "command": "train",
            "dataset": data.name,
            "model": recipe.model.name,
            "root": prepared.options.absolute_root,
            "warnings": list(prepared.warnings),
            "started": now,
            "recipe": recipe.to_dict(),
            "method": {"name": method.name, **method.config(prepared.skeleton)} if method else {"name": "dense"},
            "steps_per_epoch": data.loaders.train.steps,
            "data": data.identity(),
            "notes": list(data.notes),
            "execution": list(setting.execution.why),
            "processes": setting.world.size,
            **where,
        }
    write_json(RunFolder(out).config, config)
    if data.images and data.images.corrupted:
        save_indices(data.images, RunFolder(out).labels)
    if data.text:
        data.text.vocabulary.save(RunFolder(out).vocabulary)


@contextlib.contextmanager
def reproducible(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set threads, cuDNN and TF32 as the recipe says, inside this context.

    fp32 means fp32: torch's own default lets convolutions use TF32. On a GPU everything runs on a separate stream, as
    capturing a CUDA graph requires. cuDNN tries as many kernels as torch lets it (ten): trying all doubles the time of
    the first step, and measurements did not show later ones getting faster (python -m benchmarks.startup).
    """
    threads, cudnn, tf32 = torch.get_num_threads(), torch.backends.cudnn, recipe.train.precision != "fp32"
    matmul = torch.get_float32_matmul_precision()
    fixed = recipe.train.deterministic
    with contextlib.ExitStack() as stack:
        if device.type == "cpu" and recipe.train.threads:
            torch.set_num_threads(recipe.train.threads)
            stack.callback(torch.set_num_threads, threads)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            stack.callback(torch.set_float32_matmul_precision, matmul)
            stack.enter_context(
                cudnn.flags(
                    enabled=cudnn.enabled,
                    benchmark=not fixed,
                    deterministic=fixed,
                    allow_tf32=tf32,
                )
            )
            stack.enter_context(_stream_of_its_own(device))
        yield


@contextlib.contextmanager
def _stream_of_its_own(device: torch.device) -> Iterator[None]:
    """Use a separate stream, with work before, inside and after this context in order, as on one stream."""
    outside, inside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    inside.wait_stream(outside)
    try:
        with torch.cuda.stream(inside):
            yield
    finally:
        outside.wait_stream(inside)
