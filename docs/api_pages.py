"""The public names of modules, with parameters and docstrings, for the pages of the clients."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, Final

MARKED: Final = re.compile(
    r"(<!-- Made by `python docs/generate\.py` from (\S+), up to its end\. Do not edit\. -->\n)"
    r".*?(<!-- The end of \2\. -->)",
    re.DOTALL,
)
LINE_LENGTH: Final = 96
BLOCK: Final = "    "


def filled(page: str) -> str:
    """Return a page with the names of each module that it marks a place for."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{module_text(mark[2])}\n{mark[3]}", page)


def module_text(name: str) -> str:
    """Return the classes and functions of a module, each below a heading."""
    module = importlib.import_module(name)
    lines: list[str] = []
    for each in public_names(module):
        value = getattr(module, each)
        if inspect.isclass(value):
            lines += class_lines(module, each, value)
        elif isinstance(value, FunctionType):
            lines += callable_lines("###", each, value)
    return "\n".join(lines)


def public_names(module: ModuleType) -> list[str]:
    """Return what a module offers: its `__all__`, else all that it defines itself."""
    if names := getattr(module, "__all__", None):
        return sorted(names, key=lambda each: (each[0].islower(), each))
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def class_lines(module: ModuleType, name: str, cls: type) -> Iterator[str]:
    """Yield a class and its members. A twin whose methods are awaited refers to the other class."""
    yield from [f"### {name}", ""]
    yield from (f"{BLOCK}{line}" for line in head_lines(name, cls))
    yield from ["", *text_lines(cls.__doc__)]
    if issubclass(cls, Enum):
        yield from (f"- `{member.name}`: `{member.value!r}`" for member in cls)
        yield ""
    members = dict(members_of(cls))
    twin = name.removeprefix("Async")
    if (
        twin != name
        and (shared := dict(members_of(getattr(module, twin))).keys()) <= members.keys()
    ):
        yield from [
            f"It has the members of [{twin}](#{twin.lower()}), whose calls are awaited.",
            "",
        ]
        members = {each: member for each, member in members.items() if each not in shared}
    for each, member in members.items():
        yield from member_lines(f"{name}.{each}", member)


def head_lines(name: str, cls: type) -> list[str]:
    """Return the parameters of a class, or its base where it has those of that."""
    if issubclass(cls, Enum | BaseException) and "__init__" not in vars(cls):
        return [f"class {name}({', '.join(base.__name__ for base in cls.__bases__)})"]
    is_made = is_dataclass(cls) or cls.__init__ is not object.__init__ or issubclass(cls, tuple)
    is_protocol = getattr(cls, "_is_protocol", False)
    return signature_lines(name, cls) if is_made and not is_protocol else [f"class {name}"]


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties, in the order of the code, without fields and built-in ones."""
    seen: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ not in ("builtins", "enum", "typing"):
            seen |= vars(base)
    for name, member in seen.items():
        is_made = isinstance(member, FunctionType | classmethod | staticmethod | property)
        is_internal = hasattr(getattr(member, "__func__", member), "is_internal")
        if is_made and not name.startswith("_") and not is_internal:
            yield name, member


def member_lines(name: str, member: Any) -> Iterator[str]:
    """Yield a method or a property."""
    if not isinstance(member, property):
        yield from callable_lines("####", name, getattr(member, "__func__", member))
        return
    returned = annotation_text(inspect.signature(member.fget).return_annotation)
    yield from [f"#### {name}", "", f"{BLOCK}{name.rpartition('.')[2]}: {returned}", ""]
    yield from text_lines(member.__doc__)


def callable_lines(heading: str, name: str, function: FunctionType) -> Iterator[str]:
    """Yield a function: a heading, its parameters, its docstring."""
    yield from [f"{heading} {name}", ""]
    shown = name.rpartition(".")[2]
    start = "async def " if inspect.iscoroutinefunction(function) else ""
    yield from (f"{BLOCK}{line}" for line in signature_lines(f"{start}{shown}", function))
    yield from ["", *text_lines(function.__doc__)]


def signature_lines(start: str, called: Any) -> list[str]:
    """Return a signature, in one line or with a line for each parameter."""
    signature = inspect.signature(called)
    parameters = [
        each for each in signature.parameters.values() if each.name not in ("self", "cls")
    ]
    texts: list[str] = []
    is_keyword = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            texts += [] if texts and texts[-1].startswith("*") else ["*"]
        texts.append(parameter_text(each))
    returned = annotation_text(signature.return_annotation)
    end = f") -> {returned}" if returned and not inspect.isclass(called) else ")"
    line = f"{start}({', '.join(texts)}{end}"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [f"{start}(", *(f"{BLOCK}{each}," for each in texts), end]


def parameter_text(parameter: inspect.Parameter) -> str:
    """Return a parameter with its type and default."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = annotation_text(parameter.annotation)
    text = f"{stars}{parameter.name}" + (f": {kind}" if kind else "")
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default)
    if isinstance(parameter.default, Enum):
        default = str(parameter.default)
    elif default.startswith("<"):  # an object without a form of its own
        default = "..."
    return f"{text} = {default}" if kind else f"{text}={default}"


def annotation_text(annotation: Any) -> str:
    """Return a type as the code has it; empty if it has none."""
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def text_lines(docstring: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown: a block after `::` is a block after a colon."""
    if docstring:
        yield from [re.sub(r"::$", ":", inspect.cleandoc(docstring), flags=re.MULTILINE), ""]
