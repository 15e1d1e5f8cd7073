// The table of kernels. One table per instruction set; `kernels_for` picks one by what the processor has.
//
// The kernel sources use no templates of the standard library: a template compiled with AVX-512 flags could be kept
// by the linker and called on a machine without AVX-512.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tile.h"

// One non-zero weight: its value and the byte offset of its input channel inside the packed block.
struct Entry {
    float value;
    uint32_t offset;
};

// Four weights of one input channel for four neighbouring output channels.
struct BlockEntry {
    float value[4];
    uint32_t offset;
};

// A row (or four) of the output and how many entries of the stream belong to it.
struct Row {
    uint32_t row;
    uint32_t count;
};

// What happens to the sums of one block of input channels.
struct Epilogue {
    const float* row_bias = nullptr;     // one value per row of the result
    const float* column_bias = nullptr;  // one value per column of the result
    const float* residual = nullptr;     // added after the last block
    size_t residual_stride = 0;
    float low = 0, high = 0;             // the result is clamped to this range after the last block
    bool first = true, last = true;      // whether this is the first, the last block
};

// Lanes of one output vector that lie at `base + offset` in the source. `offset` is where lane 0 would be. Bit i of the
// mask is lane i; where every second number of the source is read, bit 2i.
struct Segment {
    int32_t offset;
    uint32_t mask;
};

// One vector of a packed tile: from `source + offset` to `packed + to`, the lanes of `mask`, zeros elsewhere.
struct Move {
    int32_t offset;
    uint32_t to;
    uint32_t mask;
};

// Where every vector of a tile comes from: vector v of tap t owns segments [start[t*vectors+v], start[t*vectors+v+1]).
// For packing, the same as moves: whole vectors, then masked ones, then pieces that are laid over those.
struct Gathering {
    const Segment* segments;
    const uint32_t* start;
    int taps;
    int vectors;
    int step;  // 1, or 2 where every second number of the source is read
    const Move* moves;
    uint32_t whole, masked, over;
    const int32_t* lines;  // where the cache lines of one channel begin
    uint32_t line_count;
};

enum class Activation : int { none, clamp, sigmoid, tanh, silu, gelu, gelu_tanh, erf, exp, sqrt, hard_sigmoid, hard_swish,
                              leaky_relu, neg, abs, reciprocal, elu, log };
enum class Arithmetic : int { add, sub, mul, div, max, min, pow };
enum class Window : int { weighted, maximum, sum };

struct Kernels {
    const char* name;
    int lanes;
    // out[row] (+)= sum of value * in[offset], rows kTile floats apart.
    void (*sparse)(const Row* rows, size_t n, const Entry* entries, const float* in, int pixels, float* out,
                   const Epilogue& e);
    void (*block4)(const Row* rows, size_t n, const BlockEntry* entries, const float* in, int pixels, float* out,
                   const Epilogue& e);
    // c[rows x columns] (+)= a[rows x depth] b[depth x kTile]; columns <= kTile.
    void (*gemm)(const float* a, size_t a_stride, int rows, int depth, const float* b, int columns, float* c,
                 size_t c_stride, const Epilogue& e);
    // The same with a in panels of four rows, [depth][4] each, one after the other.
    void (*panels)(const float* a, int rows, int depth, const float* b, int columns, float* c, size_t c_stride,
                   const Epilogue& e);
    // packed[channel][tap][kTile] from `channels` channels of the source.
    void (*pack)(const Gathering& from, const float* source, size_t channel_stride, int channels, float* packed);
    // out[channel][kTile]: a window of taps reduced per channel; weights[channel / 8][taps][8] where weighted.
    void (*window)(Window kind, const Gathering& from, const float* source, size_t channel_stride, int channels,
                   const float* weights, const float* scale, const float* bias, float low, float high, float* out);
    void (*activate)(Activation kind, const float* in, float* out, size_t n, float low, float high);
    // mode 0: vectors; 1: a is one number; 2: b is one number
    void (*arithmetic)(Arithmetic kind, const float* a, const float* b, float* out, size_t n, int mode);
    void (*softmax)(const float* in, float* out, size_t n);
    void (*normalise)(const float* in, float* out, size_t n, const float* scale, const float* bias, float epsilon,
                      bool centred);
    // packed[i][j] = in[j*stride + i] for i < depth, j < columns
    void (*transpose)(const float* in, size_t stride, int depth, int columns, float* packed);
    // sums[r] += products of a plain vector with entries [start[r], start[r + 1]); offsets in bytes of it
    void (*dots)(const Entry* entries, const size_t* start, size_t rows, const float* in, float* sums);
    // out[r] = sum of a[k][r] x[k][r], r < 4: one panel with one column, whose every number stands four times in x.
    void (*panel_dot)(const float* a, const float* x, int depth, float* out);
};

const Kernels* avx512_kernels();  // null where the compiler could not build them
const Kernels* avx2_kernels();
const Kernels* generic_kernels();

// The best table this processor can run, or the one named. Null when the named one cannot run here.
const Kernels* kernels_for(const char* name);
