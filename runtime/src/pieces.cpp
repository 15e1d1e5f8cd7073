#include "pieces.h"

#include <algorithm>

// Where share s of `threads` begins: at a unit, at the beginning of a tile where that is about as fair.
static int64_t boundary(int64_t units, int64_t s, int64_t threads) {
    const int64_t fair = units * s / threads, slack = std::max<int64_t>(1, units / threads / 32);
    const int64_t tile = (fair + kTileUnits / 2) / kTileUnits * kTileUnits;
    return std::abs(tile - fair) <= slack && tile < units ? tile : fair;
}

Pieces pieces_of(int64_t pixels, int threads, int least) {
    Pieces p;
    const int64_t tiles = tiles_of(pixels), units = tiles ? (tiles - 1) * kTileUnits + units_of(pixels, tiles - 1) : 0;
    const int64_t shares = std::max<int64_t>(1, std::min<int64_t>(threads, units / least));
    const int parts = int((threads + shares - 1) / shares);  // of the channels
    std::vector<int64_t> firsts;
    for (int64_t s = 0; s < shares; s++) {
        firsts.push_back(int64_t(p.list.size()));
        const int64_t end = s + 1 == shares ? units : boundary(units, s + 1, shares);
        for (int64_t u = boundary(units, s, shares); u < end;) {
            const int64_t t = u / kTileUnits, next = std::min(end, (t + 1) * kTileUnits);
            const int first = int(u - t * kTileUnits) * kUnit;
            const int count = std::min(int(next - u) * kUnit, pixels_of(pixels, t) - first);
            for (int i = 0; i < parts; i++) p.list.push_back({t, first, count, i, parts});
            u = next;
        }
    }
    firsts.push_back(int64_t(p.list.size()));
    for (int64_t s = 0; s <= threads; s++)
        p.starts.push_back(parts == 1 ? firsts[size_t(s)] : int64_t(p.list.size()) * s / threads);
    return p;
}
