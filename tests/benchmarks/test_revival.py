from benchmarks import revival


def test_a_line_for_every_decompression() -> None:
    _, header, cells, note = revival.measure(
        ["method.schedule=paper", "method.sparsity=0.9", "train.epochs=8", "run.seeds=[0]"]
    )
    assert len(cells) >= 1
    assert all(len(row) == len(header) for row in cells)
    counts = [int(row[header.index("filters pruned whole")]) + int(row[header.index("other filters")]) for row in cells]
    assert len(set(counts)) == 1
    assert counts[0] > 100
    assert "90%" in note
