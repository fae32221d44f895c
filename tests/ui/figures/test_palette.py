"""The colors of pictures and charts."""

from collections import Counter

from ui.figures import palette


def test_a_color_has_one_meaning():
    groups = (palette.PHASE, palette.CHANGE, palette.KIND, {**palette.VERDICT, "faster": palette.SHORTER, "slower": palette.LONGER})
    single = (palette.OTHER, palette.CRITICAL, palette.LIMIT, palette.PREDICTED, palette.MEASURED, palette.GREY, palette.IDLE)
    used = Counter([*single, *palette.LINES, *(color for group in groups for color in group.values())])
    assert [color for color, times in used.items() if times > 1] == []
