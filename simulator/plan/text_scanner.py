"""Reads one line of a plan's text from left to right. Every step either advances or raises UnusableFileError with line and column."""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from simulator.plan.text_lines import BARE, METHODS, NO_LAYER, SELECT, SLICE, contiguous_strides, expanded
from traces.errors import UnusableFileError

_INTEGER = re.compile(r"-?\d{1,20}(?!\d)")
_COMMA_AND_BLANKS = re.compile(r" *,? *")
_FIELD = re.compile(r"([a-z][a-z0-9_-]*)=")
_SUBSCRIPT = re.compile(r"\[((?::,){0,3})(-?\d{1,20})(?::(-?\d{1,20}))?\]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class Line:
    """One line of text with a position in it. `source` names the text in messages."""

    def __init__(self, text: str, number: int, source: str):
        self.text, self.number, self.source = text, number, source
        self._at = 0
        self._skip_blanks()

    @property
    def done(self) -> bool:
        """Whether the line is read to its end."""
        return self._at == len(self.text)

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        """Raise UnusableFileError: `expected` is not what stands at the position."""
        at = self._at if at is None else at
        rest = self.text[at:]
        got = ascii(rest if len(rest) <= 40 else rest[:40] + "...") if rest else "the end of the line"
        raise UnusableFileError(f"{self.source}, line {self.number}, column {at + 1}: expected {expected}, got {got}")

    def end(self) -> None:
        """Refuse a line that goes on."""
        if not self.done:
            self.fail("the end of the line")

    def name(self, what: str) -> str:
        """A name, bare or in quotes."""
        name = self._name(what)
        self._skip_blanks()
        return name

    def layer(self) -> str:
        """The name of a layer; `-` stands for none."""
        if self._try(re.compile(rf"{NO_LAYER}(?!\S)")):
            self._skip_blanks()
            return ""
        return self.name("a layer")

    def lane(self) -> tuple[str, int]:
        """A device and the number of a stream: `cuda:0/1`."""
        start = self._at
        device, stream = self._name("a lane, such as cuda:0/1"), ""
        if self.text[start] == '"':
            stream = self._literal("/", "the stream after the device, such as /0") + (self._bare() or "")
        elif "/" in device:
            device, _, stream = device.rpartition("/")
            stream = "/" + stream
        if not _INTEGER.fullmatch(stream[1:]):
            self.fail("a lane, such as cuda:0/1", start)
        self._skip_blanks()
        return device, int(stream[1:])

    def integer(self, what: str) -> int:
        """A whole number of at most 20 digits."""
        digits = self._try(_INTEGER)
        if digits is None:
            self.fail(what)
        self._skip_blanks()
        return int(digits[0])

    def keyword(self, *words: str) -> str | None:
        """One of `words`, if it comes next."""
        match = self._try(re.compile(rf"({'|'.join(words)})(?!\S)"))
        self._skip_blanks()
        return match[0] if match else None

    def listed(self, item: Callable[[], Any]) -> list:
        """What `item` reads, once and again after every comma."""
        items = [item()]
        while self._try(re.compile(",")):
            self._skip_blanks()
            items.append(item())
        return items

    def fields(self, *taken: str) -> dict[str, Any]:
        """Fields and their contents, as far as they go: `name=content name=content`. None may have a name in `taken`."""
        fields: dict[str, Any] = {}
        while match := self._try(_FIELD):
            if match[1] in fields or match[1] in taken:
                self.fail(f"{match[1]} only once", match.start())
            fields[match[1]] = self._content(match[1])
            self._skip_blanks()
        return fields

    def json_object(self) -> dict[str, Any]:
        """A JSON object."""
        start = self._at
        content = self._json("a JSON object")
        if not isinstance(content, dict):
            self.fail("a JSON object", start)
        self._skip_blanks()
        return content

    def repeat(self) -> int | None:
        """How many periods a segment has: `repeat=3`; None if that is left out."""
        return self.integer("the number of periods") if self._try(re.compile("repeat=")) else None

    def geometry(self) -> dict[str, Any]:
        """Dtype, shape and strides: `float32[4,5](1,4)`; the strides are a contiguous tensor's if left out."""
        start = self._at
        dtype = self._name("a dtype and a shape, such as float32[4,5]")
        shape = self._integers("[", "]")
        strides = self._integers("(", ")") if self.text.startswith("(", self._at) else list(contiguous_strides(shape))
        if len(strides) != len(shape):
            self.fail(f"{len(shape)} strides, one for each dimension", start)
        self._skip_blanks()
        return {"dtype": dtype, "shape": shape, "strides": strides}

    def operand(self, geometry_of: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
        """An operand, as JSON data. If it states no geometry, it has `geometry_of` its value (None: there is no such value)."""
        start = self._at
        value, views = self._viewed()
        self._skip_blanks()
        geometry = self.geometry() if self.keyword("as") else geometry_of(value)
        if geometry is None:
            self.fail("one of the plan's values, or an operand with its geometry", start)
        return {"value": value, **geometry, "views": views}

    def _viewed(self) -> tuple[str, list[dict[str, Any]]]:
        start, quoted = self._at, self.text.startswith('"', self._at)
        value, views = self._name("an operand"), []
        if not quoted and self.text.startswith("(", self._at):
            value, _, method = value.rpartition(".")
            views.append(self._method(method, start))
        while not self.done and self.text[self._at] in "[.|":
            views.append(self._view())
        return value, views

    def _view(self) -> dict[str, Any]:
        start, mark = self._at, self.text[self._at]
        if mark == "[":
            match = self._try(_SUBSCRIPT)
            if match is None:
                self.fail("a slice such as [0:8] or an index such as [3]")
            dims, first, last = match.groups()
            dim = len(dims) // 2
            if last is None:
                return {"target": SELECT, "args": f"[{dim}, {first}]"}
            return {"target": SLICE, "args": f"[{dim}, {first}, {last}]"}
        self._at += 1
        if mark == ".":
            return self._method(self._bare() or "", start)
        target, args, output = self._name("the name of a view op"), "", None
        if self.text.startswith("[", self._at):
            begin = self._at
            self._json("the view op's arguments, such as [0,1]")
            args = self.text[begin : self._at]
        else:
            args = self._quoted("the view op's arguments, such as [0,1]")
        if self._try(re.compile("->")):
            output = int(self._pattern(_INTEGER, "the position of a result")[0])
        return {"target": target, "args": args, "output": output}

    def _method(self, method: str, start: int) -> dict[str, Any]:
        if method not in METHODS:
            self.fail(f"a view, one of {', '.join(METHODS)}", start)
        begin = self._at + 1
        self._literal("(", "the view's arguments")
        while self._try(_COMMA_AND_BLANKS) and not self.text.startswith(")", self._at):
            self._json("an argument of the view, or )")
        self._at += 1
        return {"target": METHODS[method], "args": f"[{self.text[begin : self._at - 1]}]"}

    def _content(self, name: str) -> Any:
        """What follows `name=`: text between back quotes, JSON or a bare name."""
        text, start = self.text, self._at
        if text.startswith("`", start):
            end = text.find("`", start + 1)
            if end < 0:
                self.fail("a second back quote")
            self._at = end + 1
            return expanded(text[start + 1 : end])
        if not self.done and text[start] in '"[{-0123456789':
            return self._json(f"the content of {name}")
        bare = self._bare()
        if bare is None:
            self.fail(f"the content of {name}")
        return {"true": True, "false": False, "null": None}.get(bare, bare)

    def _integers(self, left: str, right: str) -> list[int]:
        self._literal(left, f"{left}numbers{right}")
        numbers: list[int] = []
        while not self.text.startswith(right, self._at):
            if numbers:
                self._literal(",", f"a comma or {right}")
            numbers.append(int(self._pattern(_INTEGER, "a whole number of at most 20 digits")[0]))
        self._at += 1
        return numbers

    def _name(self, what: str) -> str:
        return self._quoted(what) if self.text.startswith('"', self._at) else self._bare() or self.fail(what)

    def _quoted(self, what: str) -> str:
        start = self._at
        text = self._json(what) if self.text.startswith('"', self._at) else None
        return text if isinstance(text, str) else self.fail(what, start)

    def _bare(self) -> str | None:
        match = self._try(BARE)
        return match[0] if match else None

    def _json(self, what: str) -> Any:
        try:
            content, self._at = _DECODER.raw_decode(self.text, self._at)
        except (ValueError, RecursionError):  # JSON that is damaged, or nested too deep
            self.fail(what)
        return content

    def _literal(self, text: str, what: str) -> str:
        if not self.text.startswith(text, self._at):
            self.fail(what)
        self._at += len(text)
        return text

    def _pattern(self, pattern: re.Pattern, what: str) -> re.Match:
        return self._try(pattern) or self.fail(what)

    def _try(self, pattern: re.Pattern) -> re.Match | None:
        match = pattern.match(self.text, self._at)
        if match:
            self._at = match.end()
        return match

    def _skip_blanks(self) -> None:
        while self.text.startswith(" ", self._at):
            self._at += 1
