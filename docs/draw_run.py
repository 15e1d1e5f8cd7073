"""The report's first figure by itself: python docs/draw_run.py RUN_FOLDER OUT.svg

Test accuracy and sparsity over the epochs of a run, as `acdc train` leaves it, with the finding as the title.
"""

import sys
from pathlib import Path

import matplotlib as mpl

from acdc.report import curves, read, theme


def main(run: Path, out: Path) -> None:
    chart = curves.signature(read.read(run))
    style = {**theme.STYLE, "svg.fonttype": "path", "svg.hashsalt": "acdc"}  # the same letters and file everywhere
    with mpl.rc_context(style):
        figure = chart.draw(False)
        figure.set_facecolor("white")
        height = figure.get_size_inches()[1]
        figure.suptitle(
            chart.title, x=0.004, y=1 + 0.12 / height, ha="left", va="bottom", fontsize=13, fontweight="bold"
        )
        figure.savefig(out, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.12, facecolor="white")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
