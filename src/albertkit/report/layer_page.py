"""`albertkit inspect --layers`: what each application of the layer does to some texts, as a table and as a page of pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.config import AlbertConfig
from albertkit.conversion.classes import load_model
from albertkit.conversion.own_tokenizer import own_tokenizer
from albertkit.errors import MissingExtraError
from albertkit.files import atomic_file, check_page_file
from albertkit.frame.plots import GRID, HEAT, MUTED, TRAIN, Look, page_svg, wide_and_narrow
from albertkit.frame.rendering import to_page
from albertkit.frame.result import Result
from albertkit.frame.section import Facts, Figure, Highlight, Highlights, Section, Table, Text
from albertkit.inference.layers import SAMPLE_LENGTH, LayerMovement, sample_texts, trace_layers
from albertkit.model_folder import local_folder

MUCH_UNKNOWN = 0.1  # of the tokens: what is measured is then no text that the model was made for
TEXT_SHOWN = 160  # characters of each text
MOST_NUMBERS = 16  # rows or columns; in more cells than that numbers would not be legible

COLUMNS = [
    "layer",
    "cos to before",
    "cos to last",
    "step",
    "turn",
    "length",
    "cos of tokens",
    "entropy (lowest, highest head)",
]
READING = (
    "Layer 0 is the embedding. Step: as a multiple of the state's length; turn: cosine of a step with the one before; tokens: "
    "two different ones; entropy of attention: of looking at all tokens alike."
)
ALIKE = (
    "A row and a column for the state after each layer; 0 is the projected embedding. The number is the cosine of the two states "
    "of a token, averaged over all tokens. Fainter is less alike; full is 1."
)
MOVES = (
    "The step is what a layer adds, as a multiple of the length of the state. The turn is the cosine between a step and the one "
    "before: 1 goes straight on, 0 turns off, −1 goes back. Two tokens is the cosine between states of different tokens: near 1 "
    "they have become hard to tell apart. Averages over all tokens."
)
LOOKS = (
    "How evenly a head spreads its attention, as a share of the entropy of looking at every token alike: 1 is an even look, 0 "
    "is a look at one token. Where layers share their weights, a column is one head with the same weights in every row. "
    "Fainter is a more pointed look."
)


@dataclass(frozen=True)
class LayerReport(Result):
    """Report of the movement of texts through the layers.

    Attributes:
        model: Its folder.
        page: The page that was written.
        layers: What was measured.
        warnings: What a reader must know of the texts.
    """

    model: Path
    page: Path
    layers: LayerMovement
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return the figures by layer, and where the page is."""
        return [layer_table(self.layers), Facts({"page": self.page})]


def draw_layers(
    model: str | Path, out: str | Path, texts: Sequence[str] = (), length: int | None = None
) -> LayerReport:
    """Run texts, by default built-in English ones, through a model and write a page of what each application of the layer did."""
    page = check_page_file(out)
    folder = local_folder(model)
    loaded = load_model(folder)
    tokenizer = own_tokenizer(folder, loaded.config)
    read = list(texts) or sample_texts()
    measured = trace_layers(loaded, tokenizer, read, SAMPLE_LENGTH if length is None else length)
    source = "" if texts else "built-in English text"
    facts = [layers_in_words(loaded.config), read_text(measured), source]
    html = layer_page(Path(model).resolve().name, measured, facts, read)
    with atomic_file(page, "w") as stream:
        stream.write(html)
    return LayerReport(folder, page, measured, tuple(layer_warnings(measured)))


def layers_in_words(config: AlbertConfig) -> str:
    """Return what is applied how often, in words."""
    blocks, times = (count * config.inner_group_num for count in (config.num_hidden_groups, config.num_hidden_layers))
    shared = {"attention": ", which share their attention", "ffn": ", which share their feed-forward"}
    what = "one layer" if blocks == 1 else f"{blocks} layers{shared.get(config.parameter_sharing, '')}"
    return f"{what}, applied {times} times"


def layer_page(title: str, layers: LayerMovement, facts: Sequence[str], texts: Sequence[str] = ()) -> str:
    """Return the page as HTML without any outside resource; `facts` are the line below the title."""
    footer = (
        "Averages over all tokens, special ones included; entropy in shares of that of looking at all "
        f"{layers.tokens / layers.texts:.0f} tokens of a text alike. The same movement is drawn in figure 1 of the ALBERT paper."
    )
    shown = "\n".join(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…" for text in texts)
    sections = [
        _highlights(layers),
        *_pictures(layers),
        layer_table(layers, "All figures"),
        Text(shown, "The texts", form="source"),
    ]
    warnings = [f"{note[:1].upper()}{note[1:]}." for note in layer_warnings(layers)]
    return to_page(f"Layers of {title}", sections, " · ".join(filter(None, facts)), warnings, footer)


def layer_table(layers: LayerMovement, title: str = "") -> Table:
    """Return the figures by layer: 0 is the embedding, which no layer has made."""
    rows = []
    for number, cosines in enumerate(layers.similarity):
        before = step = turn = entropy = None
        if number:
            heads = [value / layers.uniform for value in layers.entropy[number - 1]]
            before, step = f"{cosines[number - 1]:.3f}", f"{layers.step[number - 1]:.3f}"
            entropy = f"{sum(heads) / len(heads):.1%} ({min(heads):.1%} to {max(heads):.1%})"
        if number > 1:
            turn = f"{layers.turn[number - 2]:.3f}"
        last, norm, alike = f"{cosines[-1]:.3f}", f"{layers.norm[number]:.2f}", f"{layers.anisotropy[number]:.3f}"
        rows.append([number, before, last, step, turn, norm, alike, entropy])
    return Table(COLUMNS, rows, title, f"{read_text(layers)}. {READING}")


def layer_warnings(layers: LayerMovement) -> list[str]:
    """Return what must be known about the texts."""
    unknown = f"the tokenizer does not know {layers.unknown:.0%} of the tokens: give texts of the model's language with --text"
    return [unknown] if layers.unknown > MUCH_UNKNOWN else []


def read_text(layers: LayerMovement) -> str:
    """Return how much was read, in words."""
    cut = f" ({layers.cut} of them cut)" if layers.cut else ""
    return f"{layers.tokens:,} tokens of {layers.texts} text{'s' * (layers.texts != 1)}{cut}"


def _highlights(layers: LayerMovement) -> Highlights:
    similarity, alike = layers.similarity, layers.anisotropy
    fixed = f"cosine before and after: {similarity[-1][-2]:.3f}; 0% would be a fixed point"
    tokens = f"cosine of their last states; of their embeddings {alike[0]:.2f}"
    first = "cosine of a token's first state, the embedding, with its last"
    return Highlights([
        Highlight("From embedding to answer", f"{similarity[0][-1]:.2f}", note=first),
        Highlight("The last layer still moves it", f"{layers.step[-1]:.0%}", "of its length", fixed),
        Highlight("Two different tokens", f"{alike[-1]:.2f}", note=tokens),
    ])  # fmt: skip


def _pictures(layers: LayerMovement) -> list[Section]:
    """Return the three pictures, or how to get them."""
    try:
        return [
            Figure(*_pair(similarity_svgs(layers.similarity), "How alike the states are", ALIKE)),
            Figure(*_pair(movement_svgs(layers), "How a state moves", MOVES)),
            Figure(*_pair(entropy_svgs(layers.entropy, layers.uniform), "Where the heads look", LOOKS)),
        ]
    except MissingExtraError as error:
        missing = f"There are no pictures: {error.message}. Install it and write the page again:"
        return [Text(missing, "Pictures"), Text(error.hint, form="code")]


def _pair(svgs: Sequence[str], title: str, caption: str) -> tuple[str, str, str, str]:
    return svgs[0], title, caption, svgs[1]


def similarity_svgs(similarity: Sequence[Sequence[float]]) -> list[str]:
    """Draw the cosines [L+1][L+1] of every state with every other, 0 (the embedding) to L, wide and narrow."""
    label = "Cosine between the states after any two layers"
    return _heat_svgs(similarity, "similarity", label, ("after layer", "after layer"), first=0)


def entropy_svgs(entropy: Sequence[Sequence[float]], uniform: float) -> list[str]:
    """Draw the entropy [L][A] of every head in every layer, as a share of `uniform`, that of looking everywhere alike."""
    shares = [[value / uniform for value in heads] for heads in entropy]
    return _heat_svgs(shares, "entropy", "Entropy of attention by layer and head", ("head", "in layer"), first=1)


def movement_svgs(layers: LayerMovement) -> list[str]:
    """Draw the step, its turn, and how alike different tokens become, over the layers."""
    last = len(layers.step)
    panels = (
        ("step,\nof the length", range(1, last + 1), layers.step, 0.0),
        ("turn\n(cosine)", range(2, last + 1), layers.turn, None),
        ("two tokens\n(cosine)", range(last + 1), layers.anisotropy, 0.0),
    )

    def draw(figure: Any, _: Look) -> None:
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, (name, places, values, bottom) in zip(axes, panels, strict=True):
            axis.plot(places, values, color=TRAIN, linewidth=1.8, marker="o", markersize=4)
            axis.set_ylabel(name)
            axis.grid(axis="y", color=GRID, linewidth=0.7)
            if bottom is None:
                axis.axhline(0, color=MUTED, linewidth=0.8)
            else:
                axis.set_ylim(bottom=min(bottom, *values) * 1.1, top=max(values) * 1.12 or 1)
        axes[-1].set_xticks(range(0, last + 1, 1 if last <= MOST_NUMBERS else 2))
        axes[-1].set_xlabel("after layer")
        figure.align_ylabels(axes)

    label = "Step, turn and likeness of tokens over the layers"
    return [page_svg(look, draw, "movement", label) for look in wide_and_narrow(5.6, 4.8)]


def _heat_svgs(
    values: Sequence[Sequence[float]], name: str, label: str, axes: tuple[str, str], first: int
) -> list[str]:
    """Draw cells [rows][columns] of one colour, fainter where the value is lower: 0 is invisible, 1 and above full.

    The page's own background shows through, light or dark. `axes` are the names of columns and rows, `first` is the number
    of the first row; columns begin at 0 if rows do, else at 1.
    """
    rows, columns = len(values), len(values[0])

    def draw(figure: Any, look: Look) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Rectangle

        axis = figure.subplots()
        cells = [Rectangle((x, y), 1, 1) for y in range(rows) for x in range(columns)]
        colours = [to_rgba(HEAT, min(max(value, 0), 1)) for row in values for value in row]
        axis.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="none"))
        axis.set(xlim=(0, columns), ylim=(rows, 0), xlabel=axes[0], ylabel=axes[1])
        if max(rows, columns) <= MOST_NUMBERS:
            size = 6.5 if look.narrow else 8.5
            for y, row in enumerate(values):
                for x, value in enumerate(row):
                    axis.text(x + 0.5, y + 0.5, _short(value), ha="center", va="center", fontsize=size)
        for set_ticks, count, begin in ((axis.set_xticks, columns, min(first, 1)), (axis.set_yticks, rows, first)):
            every = 1 if count <= MOST_NUMBERS else 2 if count <= 2 * MOST_NUMBERS else 8
            shown = range(0, count, every)
            set_ticks([place + 0.5 for place in shown], [str(place + begin) for place in shown])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)

    wide, narrow = (0.7 + rows * min(share, 7 / rows) for share in (0.38, 0.28))
    return [page_svg(look, draw, name, label) for look in wide_and_narrow(wide, narrow)]


def _short(value: float) -> str:
    """Return .95, 1 and -.2: two decimals in little room."""
    text = f"{value:.2f}".replace("0.", ".", 1)
    return {"1.00": "1", ".00": "0", "-.00": "0"}.get(text, text)
