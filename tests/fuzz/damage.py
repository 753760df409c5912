"""Ways to damage a file: bytes without knowledge of what they mean, and structures that stay well-formed around wrong values.

Every function takes a `random.Random` first, so that hypothesis can choose, repeat and shrink what
is done.
"""

import gzip
import json
import lzma
import tomllib
from pathlib import Path

import tomli_w
import zstandard

NUMBERS = (
    -1,
    0,
    1,
    2,
    7,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e308,
)
ODD_NUMBERS = (*NUMBERS, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "", " ", "x", "\0", "a\nb", "a\tb", "\ud800", "\udfff\ud800", "\ufeff", "é" * 300, "x" * 20_000, "../outside", "..", ".", "/",
    "/dev/zero", "/etc/passwd", "~", "-1", "nan", "1e999", "9" * 5000, "true", "null", "{{7*7}}", "%s%n", "a/../../outside/x",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "!!python/object/apply:os.mkdir [owned]",
    "\u202e", "\\", "*", "**/*", "[", "con",
)  # fmt: skip
KEYS = (
    "",
    "x",
    "__class__",
    "__init__",
    "\0",
    "..",
    "type",
    "id",
    "0",
    "text",
    "label",
    "self",
    "cls",
)


def value(rng, baits=()):
    """A JSON value that nobody expects."""
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(ODD_NUMBERS)
    if kind < 6:
        return rng.choice((*baits, *TEXTS) if rng.randrange(2) else (baits or TEXTS))
    if kind == 6:
        return rng.choice((None, True, False))
    return rng.choice(
        (
            [],
            {},
            [[]],
            [None],
            {"x": 1},
            {"": []},
            [1, "a", None],
            [0] * 1000,
            {"content": 3},
            [{}],
            [-1, 2**40],
        )
    )


def _nodes(tree):
    """Every (container, key) of a tree."""
    nodes = []
    open_ = [tree]
    while open_ and len(nodes) < 5000:
        node = open_.pop()
        keys = (
            list(node)
            if isinstance(node, dict)
            else range(len(node))
            if isinstance(node, list)
            else ()
        )
        for key in keys:
            nodes.append((node, key))
            open_.append(node[key])
    return nodes


def tree(rng, content, baits=()):
    """A copy of nested lists and objects with one to three changes."""
    root = [json.loads(json.dumps(content))]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        nodes = _nodes(root)
        # names and sizes lie near the root, the thousandth piece of a vocabulary does not
        node, key = nodes[rng.randrange(min(len(nodes), rng.choice((20, 200, 5000))))]
        change = rng.randrange(10)
        if change < 5:
            node[key] = value(rng, baits)
        elif change == 5 and len(nodes) > 1:
            source, source_key = rng.choice(nodes)
            node[key] = json.loads(json.dumps(source[source_key]))
        elif change == 6 and node is not root:
            del node[key]
        elif change == 7 and isinstance(node[key], int | float) and not isinstance(node[key], bool):
            node[key] = rng.choice(
                (
                    -node[key],
                    node[key] + 1,
                    node[key] * 1000,
                    str(node[key]),
                    [node[key]],
                    float(node[key]),
                )
            )
        elif change == 8 and isinstance(node, dict):
            node[rng.choice(KEYS)] = node.pop(key)
        elif isinstance(node[key], list) and node[key]:
            node[key] = rng.choice((node[key] * 2, node[key][::-1], node[key][:-1], node[key][0]))
        else:
            node[key] = [node[key]]
    return root[0]


def json_text(rng, content, baits=()):
    """JSON of a changed tree; now and then with doubled keys, a number of 5,000 digits or a nesting of 100,000."""
    text = json.dumps(tree(rng, content, baits), ensure_ascii=rng.random() < 0.5)
    change = rng.randrange(12)
    if change == 0 and text.startswith("{") and len(text) > 2:
        first = text[1:].split(":", 1)[0]
        text = text[:-1] + f", {first}: {json.dumps(value(rng, baits))}}}"
    elif change == 1:
        text = text.replace(" 1", " " + "1" * 5000, 1)
    elif change == 2:
        deep = 100_000
        text = rng.choice(
            (
                "[" * deep + "]" * deep,
                '{"a":' * deep + "1" + "}" * deep,
                text[:-1] + ', "x": ' + "[" * deep,
            )
        )
    return text.encode("utf-8", "surrogatepass")


def toml_text(rng, content, baits=()):
    """TOML of a changed tree."""
    changed = tree(rng, json.loads(json.dumps(content, default=str)), baits)
    try:
        return tomli_w.dumps(changed).encode("utf-8", "surrogatepass")
    except (
        TypeError,
        AttributeError,
        ValueError,
        OverflowError,
    ):  # no table, or a value that TOML has not
        return raw(rng, tomli_w.dumps(content).encode())


def raw(rng, data):
    """Bytes with flips, cuts, splices, repeated and swapped blocks, or large numbers over what may be lengths."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        size = len(damaged)
        if not size:
            return rng.choice((b"", b"\0", b"\xff" * 40, b"[" * 1000))
        # most formats have their facts at the ends
        start = rng.choice(
            (
                rng.randrange(size),
                rng.randrange(min(size, 64)),
                size - 1 - rng.randrange(min(size, 64)),
            )
        )
        end = min(size, start + rng.choice((1, 2, 4, 8, 40, 400)))
        change = rng.randrange(9)
        if change < 2:
            damaged[start] ^= 1 << rng.randrange(8)
        elif change == 2:
            del damaged[start:]
        elif change == 3:
            del damaged[start:end]
        elif change == 4:
            damaged[start:start] = damaged[start:end] * rng.choice((1, 2, 50))
        elif change == 5:
            other_start = rng.randrange(size)
            block = damaged[start:end]
            damaged[start:end] = damaged[other_start : other_start + len(block)]
            damaged[other_start : other_start + len(block)] = block
        elif change == 6:
            number = rng.choice(
                (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
            )
            width = rng.choice((1, 2, 4, 8))
            damaged[start : start + width] = (number & (256**width - 1)).to_bytes(
                width, rng.choice(("little", "big"))
            )
        elif change == 7:
            damaged[start:end] = rng.choice(
                (
                    b"\0",
                    b"\xff\xfe",
                    b"\xed\xa0\x80",
                    b"\n",
                    b"\r",
                    b'"',
                    b"\t",
                    b"\x80" * 9 + b"\1",
                )
            )
        else:
            damaged[start:start] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 16))))
    return bytes(damaged)


def lines(rng, data, baits=()):
    """Lines, of JSON or of fields with tabs or commas between, one of them changed."""
    rows = data.split(b"\n")
    index = rng.randrange(len(rows))
    try:
        record = json.loads(rows[index])
    except ValueError:
        record = None
    if isinstance(record, dict | list) and rng.randrange(8):
        rows[index] = json_text(rng, record, baits).replace(b"\n", b" ")
        return b"\n".join(rows)
    change = rng.randrange(8)
    separator = b"\t" if b"\t" in data else b"," if b"," in data else b" "
    fields = rows[index].split(separator)
    field = rng.randrange(len(fields))
    if change < 3:
        fields[field] = str(value(rng, baits)).encode("utf-8", "surrogatepass")
        rows[index] = separator.join(fields)
    elif change == 3:
        rows[index] = separator.join(fields[:field] + fields[field + 1 :])
    elif change == 4:
        rows[index] = separator.join(fields * rng.choice((2, 300)))
    elif change == 5:
        rows.insert(
            index,
            rng.choice(
                (
                    b"",
                    b"\0",
                    b'"',
                    b"\t\t\t",
                    b"\xff",
                    b"x" * 300_000,
                    rows[rng.randrange(len(rows))],
                )
            ),
        )
    elif change == 6:
        del rows[index]
    else:
        fields[field] = (
            rng.choice((b'"', b'""', b"'", b'"\n', b"\r", b"\x1a", b"\\", b"#")) + fields[field]
        )
        rows[index] = separator.join(fields)
    return b"\n".join(rows)


# NaN, infinity, the largest, the least
_STRANGE = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\1\0\0\0")


def safetensors(rng, data, baits=()):
    """A header that is JSON of the right length, with other names, types, shapes or places; or other numbers behind it."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    numbers = bytearray(data[8 + length :])
    if rng.randrange(4) == 0 and numbers:  # a file like any other, of strange numbers
        position = rng.randrange(len(numbers))
        numbers[position : position + 4] = rng.choice(_STRANGE)[: len(numbers) - position]
        return data[: 8 + length] + bytes(numbers)
    if rng.randrange(3) == 0:
        names = [name for name in header if name != "__metadata__"]
        changed_name = rng.choice(names)
        other_name = rng.choice(names)
        change = rng.randrange(5)
        if change == 0:
            header[changed_name], header[other_name] = header[other_name], header[changed_name]
        elif change == 1:
            header[
                rng.choice(("x", "", "../outside", "albert.pooler.weight", changed_name + ".x"))
            ] = header.pop(changed_name)
        elif change == 2:
            header[changed_name]["shape"] = header[changed_name]["shape"][::-1] + [
                1
            ] * rng.randrange(3)
        elif change == 3:
            header[changed_name]["dtype"] = rng.choice(
                ("I32", "U32", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F64")
            )
        else:
            del header[changed_name]
    else:
        header = tree(rng, header, baits)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    length = len(text) if rng.randrange(6) else rng.choice((0, 1, 2**31, 2**63, len(text) * 2))
    return length.to_bytes(8, "little") + text + bytes(numbers)


_TYPES = (
    "<f4",
    "<f2",
    "|O",
    "<U10",
    "<M8[s]",
    "|V100000",
    "<f8",
    "|b1",
    "<c16",
    ">f4",
    "<i8",
    "|S0",
    "<f16",
)
_SHAPES = (
    "(3, 4)", "()", "(-1, 4)", f"({2**40}, 4)", "(0, 0)", f"({2**62}, {2**62})", "(4,)", "('x',)", "[3]", "(1,)*40", "(8, 8)",
)  # fmt: skip
_NO_HEADERS = (
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }",
    "(" * 5000,
    "9" * 5000,
    "__import__('os').mkdir('owned')",
)


def npy(rng, data):
    """A header of numpy with another type, order or shape."""
    end = data.index(b"\n") + 1
    header = data[10:end].decode()
    descr = rng.choice(_TYPES)
    shape = rng.choice(_SHAPES)
    order = rng.choice(("False", "True", "None"))
    written_header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    broken_headers = (header.replace("False", order), header.replace("(", "(("), *_NO_HEADERS)
    header = rng.choice((written_header, written_header, *broken_headers))
    text = header.encode() + b"\n"
    return data[:8] + min(len(text), 65535).to_bytes(2, "little") + text + data[end:]


def protobuf(rng, data):
    """A message whose fields keep their lengths right: one is changed, left out, doubled, or changed inside."""
    parts = _fields(data)
    if not parts:
        return raw(rng, data)
    index = rng.randrange(len(parts))
    if rng.randrange(2):  # the trainer's and the normaliser's sections stand last
        index = len(parts) - 1 - rng.randrange(min(3, len(parts)))
    number, kind, content = parts[index]
    change = rng.randrange(7)
    if change == 0:
        del parts[index]
    elif change == 1:
        parts.insert(index, parts[rng.randrange(len(parts))])
    elif change == 2:
        parts[index] = (rng.choice((1, 2, 3, 5, 15, 100, 2**28)), kind, content)
    elif change == 3:
        other_index = rng.randrange(len(parts))
        parts[index], parts[other_index] = parts[other_index], parts[index]
    elif kind == 2:
        changed = (
            protobuf(rng, content)
            if change < 6 and len(content) > 3 and _fields(content)
            else raw(rng, content)
        )
        parts[index] = (number, kind, changed)
    else:
        size = {0: 0, 1: 8, 5: 4}[kind]
        number_bytes = varint(rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
        parts[index] = (
            number,
            kind,
            rng.choice(_STRANGE).ljust(size, b"\0")[:size] if size else number_bytes,
        )
    return b"".join(varint(n << 3 | k) + (varint(len(c)) + c if k == 2 else c) for n, k, c in parts)


def varint(number):
    """A protocol buffer's number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _fields(data):
    """Number, kind and content of the fields; none if these bytes are no message."""
    fields = []
    position = 0
    try:
        while position < len(data):
            tag, position = _number(data, position)
            kind = tag & 7
            if kind == 0:
                _, end = _number(data, position)
            elif kind == 2:
                length, position = _number(data, position)
                end = position + length
            else:
                end = position + {1: 8, 5: 4}[kind]
            if end > len(data) or tag < 8:
                return []
            fields.append((tag >> 3, kind, data[position:end]))
            position = end
    except (IndexError, KeyError):
        return []
    return fields


def _number(data, position):
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


_PACKED = {
    ".gz": (gzip.decompress, gzip.compress),
    ".xz": (lzma.decompress, lzma.compress),
    ".zst": (lambda data: zstandard.decompress(data), lambda data: zstandard.compress(data)),
}


def content(rng, name, data, baits=()):
    """What a file of this name holds, damaged: in two of three cases with knowledge of its format."""
    suffix = Path(name).suffix.lower()
    if rng.randrange(3) == 0 or not data:
        return raw(rng, data)
    if suffix in _PACKED:
        unpack, pack = _PACKED[suffix]
        return pack(content(rng, name[: -len(suffix)], unpack(data), baits))
    if suffix == ".json":
        return json_text(rng, json.loads(data), baits)
    if suffix == ".toml":
        return toml_text(rng, tomllib.loads(data.decode()), baits)
    if suffix == ".safetensors":
        return safetensors(rng, data, baits)
    if suffix == ".npy":
        return npy(rng, data)
    if suffix == ".model":
        return protobuf(rng, data)
    if suffix in (
        ".jsonl",
        ".tsv",
        ".csv",
        ".txt",
        ".yaml",
        ".lineidx",
        ".conll",
        ".ndjson",
        ".wiki",
        ".linelist",
    ):
        return lines(rng, data, baits)
    return raw(rng, data)
