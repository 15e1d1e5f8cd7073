// The tile-major layout of feature maps, which every kernel shares.
//
// The pixels of a batch are numbered n*H*W + y*W + x and cut in tiles of 112. A tile holds its pixels channel by
// channel, so a 1x1 convolution reads aligned, contiguous memory and a tile of a few dozen channels stays in L1.
// 112 pixels are two rows of 56, four of 28 and seven AVX-512 vectors.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int kTile = 112;  // pixels of one tile
constexpr int kUnit = 16;   // pixels of one unit: the work on a partial tile is rounded up to units
constexpr int kTileUnits = kTile / kUnit;

inline int64_t tiles_of(int64_t pixels) { return (pixels + kTile - 1) / kTile; }

// Units of tile `tile` that hold pixels.
inline int units_of(int64_t pixels, int64_t tile) {
    int64_t left = pixels - tile * kTile;
    return left >= kTile ? kTileUnits : int((left + kUnit - 1) / kUnit);
}

// Pixels that tile `tile` holds.
inline int pixels_of(int64_t pixels, int64_t tile) {
    int64_t left = pixels - tile * kTile;
    return left >= kTile ? kTile : int(left);
}
