"""The checks that language models share: of their settings, and of the tokens they are called with."""

from collections.abc import Sequence

from torch import Tensor

from acdc.errors import ArgumentError, ArgumentTypeError, Shown, did_you_mean


def check_tokens(argument: str, tokens: Tensor, longest: int, limit: str, instead: str = "") -> None:
    """Raise unless these are whole numbers, batch x time, at most `longest` of them in a row; `limit` names that."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.ndim != 2:
        received = Shown(f"a tensor of shape {list(tokens.shape)}, {tokens.dtype}")
        raise ArgumentTypeError(argument, received, "expected token numbers, batch x time, such as torch.int64")
    if not 0 < tokens.shape[1] <= longest:
        allowed = f"expected sequences of 1 to {longest:,} tokens, this model's {limit}"
        if not tokens.shape[1]:
            instead = "give it one token or more"
        instead = instead or f"split them, or build the model with {limit}={tokens.shape[1]}"
        raise ArgumentError(argument, Shown(f"sequences of {tokens.shape[1]:,} tokens"), allowed, instead)


def check_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless the value is one of these words."""
    if value not in choices:
        allowed = f"expected one of {', '.join(map(repr, choices))}{did_you_mean(value, choices)}"
        raise ArgumentError(argument, received=value, allowed=allowed)


def check_dropout(argument: str, value: float) -> None:
    """Raise unless this is a share below 1."""
    if not 0 <= value < 1:
        raise ArgumentError(
            argument,
            received=value,
            allowed="expected a fraction from 0 to below 1",
            instead=f"write {argument}=0.1, or 0 for none",
        )
