"""Render the reference of all paths as one page of HTML, from the service's own description (OpenAPI)."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

_TEMPLATE = Path(__file__).with_name("reference.html")
_LIMITS = {
    "minLength": "at least {:,} characters", "maxLength": "at most {:,} characters", "minItems": "at least {:,}",
    "maxItems": "at most {:,}", "minimum": "from {:,}", "maximum": "to {:,}", "pattern": "like {}",
}  # fmt: skip


class _Field(NamedTuple):
    name: str
    kind: str
    is_needed: bool
    note: str


def reference(description: dict[str, Any]) -> str:
    """Render the reference."""
    operations = [
        _operation(description, path, method, one)
        for path, methods in description["paths"].items()
        for method, one in methods.items()
    ]
    return _template().render(title=description["info"]["title"], info=description["info"], operations=operations)


@lru_cache(1)
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _operation(description: dict[str, Any], path: str, method: str, one: dict[str, Any]) -> dict[str, Any]:
    content = one.get("requestBody", {}).get("content", {})
    body = _resolved(description, next(iter(content.values()))["schema"]) if content else {}
    answer = one["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    examples = body.get("examples", [])
    refused = [(status, each["description"]) for status, each in one["responses"].items() if status != "200"]
    return {
        "path": path,
        "method": method.upper(),
        "note": one.get("description", ""),
        "content_type": next(iter(content), ""),
        "fields": _fields(description, body),
        "example": json.dumps(examples[0], ensure_ascii=False) if examples else "",
        "answer": _fields(description, _resolved(description, answer)),
        "refused": refused,
    }


def _fields(description: dict[str, Any], schema: dict[str, Any], before: str = "") -> list[_Field]:
    """Return the fields of an object, and after each one those of the objects it holds."""
    found = []
    for name, given in schema.get("properties", {}).items():
        one = _resolved(description, given)
        limits = [form.format(one[key]) for key, form in _LIMITS.items() if key in one]
        default = f"default {json.dumps(one['default'])}" if one.get("default") is not None else ""
        note = "; ".join(part for part in (one.get("description", "").rstrip("."), *limits, default) if part)
        kind = _kind(description, one)
        found.append(_Field(f"{before}{name}", kind, name in schema.get("required", ()), note))
        inner = one
        while "items" in inner:
            inner = _resolved(description, inner["items"])
        found += _fields(description, inner, f"{before}{name}.")
    return found


def _kind(description: dict[str, Any], schema: dict[str, Any]) -> str:
    one = _resolved(description, schema)
    if several := one.get("anyOf") or one.get("oneOf"):
        kinds = dict.fromkeys(_kind(description, each) for each in several)
        return " or ".join(kind for kind in kinds if kind != "null")
    if one.get("type") == "array":
        return f"list of {_kind(description, one.get('items', {}))}"
    names = {"string": "text", "boolean": "true or false", "object": "object"}
    return names.get(one.get("type", ""), one.get("type", "any"))


def _resolved(description: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that a reference names, with the other keys of the reference."""
    if "$ref" not in schema:
        return schema
    found = description
    for name in schema["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
