// Which input pixels an output pixel of a convolution or pooling sees.
#pragma once
#include <vector>

#include "pieces.h"
#include "program.h"

struct Geometry {
    int64_t n, channels, height, width, out_height, out_width;
    int kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;

    int64_t in_pixels() const { return n * height * width; }
    int64_t out_pixels() const { return n * out_height * out_width; }
    int taps() const { return kernel_h * kernel_w; }
    bool pointwise() const {  // output pixel i sees input pixel i alone
        return taps() == 1 && stride_h == 1 && stride_w == 1 && pad_top == 0 && pad_left == 0 && out_height == height &&
               out_width == width;
    }
    void validate() const;
};

// A feature map seen through a window: for every output tile and tap, where its vectors come from.
//
// With a horizontal stride, neighbouring outputs are not neighbours in the input. Kernels read every second number as
// they go; for a stride of 3 or more the input is split in one plane per phase (x mod stride), and neighbours in a plane
// are neighbours again.
class View {
public:
    View(const Geometry& g, int lanes, Pieces pieces);
    size_t plane_floats() const {  // what follows the planes stays aligned
        return split_ ? size_t(g_.n * g_.channels * channel_stride_ + kUnit - 1) / kUnit * kUnit : 0;
    }
    // The source every tile gathers from: the map itself, or the planes, filled from it.
    const float* source(const Context& c, const float* map, float* planes) const;
    size_t channel_stride() const { return size_t(channel_stride_); }
    // The pieces of the output, as its threads share it.
    const Pieces& pieces() const { return pieces_; }
    // The gathering of a piece, and the offset of channel 0 of its images in the source.
    Gathering piece(int64_t i, size_t* offset) const;

private:
    struct Pattern {  // a gathering that pieces of one shape, at one place of their images, share
        int vectors;
        size_t start, move, line;
        uint32_t whole, masked, over, lines;
    };
    void add_pattern(const Piece& piece, int vectors);
    void add_moves(Pattern& pattern);
    void add_lines(Pattern& pattern);
    Geometry g_;
    int lanes_;
    int step_;
    bool split_;
    int64_t plane_width_ = 0, channel_stride_ = kTile;
    int64_t period_;      // tiles after which the pattern repeats, shifted by shift_
    int64_t shift_ = 0;
    Pieces pieces_;
    std::vector<size_t> pattern_of_;  // per piece
    std::vector<Pattern> patterns_;
    std::vector<Segment> segments_;
    std::vector<uint32_t> start_;
    std::vector<Move> moves_;
    std::vector<int32_t> lines_;
    std::vector<bool> row_used_;
};
