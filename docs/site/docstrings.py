"""Makes our docstrings fit for the API reference: aligned lists, `name   what it is`, become definition lists."""

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(?P<name>[\w*][\w*, .\"|=()]*?) {2,}(?P<text>\S.*)$")


def with_definitions(text: str) -> str:
    """Return a docstring whose aligned entries became a Markdown definition list."""
    lines, column = list[str](), 0
    for line in text.splitlines():
        if entry := _ENTRY.match(line):
            lines += ["", f"`{entry['name']}`", f":   {entry['text']}"]
            column = entry.start("text")
        elif column and line.startswith(" " * min(column, 8)):
            lines.append(f"    {line.strip()}")
        else:
            if column:
                lines.append("")
                column = 0
            lines.append(line)
    return "\n".join(lines)


# What a knob declared by a private descriptor takes, and its default.
_DECLARED = {"_ScheduleField": ("Schedule | str | None", "None"), "_CriterionField": ("Criterion | str", '"magnitude"')}

_SEE = "See the module docstring."


class Readable(griffe.Extension):
    """Shows docstrings and declarations as a user reads them."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring and not obj.is_module:
            obj.docstring.value = with_definitions(obj.docstring.value)

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Show a method's card, its module's docstring, where the class refers to it."""
        if cls.docstring and cls.docstring.value.startswith(_SEE) and isinstance(cls.parent, griffe.Module):
            card = cls.parent.docstring.value if cls.parent.docstring else ""
            title, _, rest = card.partition("\n")
            more = cls.docstring.value.removeprefix(_SEE).strip()
            cls.docstring.value = f"{title}\n\n{more}\n\n```text\n{rest.strip()}\n```"

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        declared = _DECLARED.get(str(attr.annotation).strip("\"'"))
        if declared:
            attr.annotation, attr.value = declared
