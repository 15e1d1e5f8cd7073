// How threads share the tiles of a map.
#pragma once
#include <vector>

#include "tile.h"

// Pixels [first, first + count) of a tile, and where units are fewer than threads a share of its channels.
struct Piece {
    int64_t tile;
    int first, count;
    int part, parts;

    // The share of n channels (or groups of them): from begin(n) to end(n).
    int begin(int n) const { return int(int64_t(n) * part / parts); }
    int end(int n) const { return int(int64_t(n) * (part + 1) / parts); }
};

// The pieces of a map in order, and where each thread's share of them starts. Shares depend on the number of pixels
// alone: layer after layer a thread works on the same region, which it finds in its own cache.
struct Pieces {
    std::vector<Piece> list;
    std::vector<int64_t> starts;
};

// Pieces have at least so many units where the map does: `least` is how many a kernel needs to be fast. Threads beyond
// that share channels.
Pieces pieces_of(int64_t pixels, int threads, int least = 1);
