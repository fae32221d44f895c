"""The colors of pictures and charts."""

from collections import Counter
from math import dist

from ui.present import palette

#: How far colors of one legend are apart at least, in CIELAB: 2 can just be told apart side by side, 5 cannot in a legend.
FAR = 15


def lab(color):
    """A color such as #12A37B in CIELAB."""
    shares = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    rows = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8729))
    x, y, z = (number ** (1 / 3) if number > 0.008856 else 7.787 * number + 16 / 116
               for number in (r * red + g * green + b * blue for r, g, b in rows))  # fmt: skip
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_a_color_has_one_meaning():
    groups = (palette.PHASE, palette.CHANGE, palette.KIND, {**palette.VERDICT, "faster": palette.SHORTER, "slower": palette.LONGER})
    single = (palette.OTHER, palette.CRITICAL, palette.LIMIT, palette.PREDICTED, palette.MEASURED, palette.GREY, palette.IDLE)
    used = Counter([*single, *palette.LINES, *(color for group in groups for color in group.values())])
    assert [color for color, times in used.items() if times > 1] == []


def test_kinds_of_memory_do_not_look_like_phases_or_each_other():
    """They stand in one legend."""
    colors = {name: lab(color) for name, color in {**palette.PHASE, **palette.KIND}.items()}
    near = [(kind, other) for kind in palette.KIND for other in colors if other != kind and dist(colors[kind], colors[other]) < FAR]
    assert near == []
