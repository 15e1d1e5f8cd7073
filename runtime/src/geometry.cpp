#include "geometry.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

void Geometry::validate() const {
    auto bad = [](const char* what) { throw std::invalid_argument(what); };
    if (n < 0 || channels < 1 || height < 1 || width < 1 || out_height < 1 || out_width < 1) bad("window: bad shape");
    if (kernel_h < 1 || kernel_w < 1 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
        bad("window: kernel, stride and dilation are at least 1");
    if (pad_top < 0 || pad_left < 0) bad("window: negative padding");
    const double limit = double(1u << 31) - 4096;
    if (double(n) * double(channels) * double(height + 2) * double(width + stride_w + 2 * kTile) >= limit ||
        double(n) * double(out_height) * double(out_width) * taps() >= limit)
        bad("window: a map of more than 2^31 values");
}

View::View(const Geometry& g, int lanes, Pieces pieces)
    : g_(g), lanes_(lanes), step_(g.stride_w == 2 ? 2 : 1), split_(g.stride_w > 2), pieces_(std::move(pieces)) {
    if (split_) {
        plane_width_ = (g.width + g.stride_w - 1) / g.stride_w;
        channel_stride_ = g.stride_w * g.height * plane_width_;
        row_used_.assign(size_t(g.height), false);
    }
    const int64_t outs = g.out_height * g.out_width, ins = g.height * g.width, tiles = tiles_of(g.out_pixels());
    const bool repeats = outs % kTile == 0 && (split_ || ins % kTile == 0);
    period_ = repeats ? std::min(tiles, outs / kTile) : tiles;
    if (double(period_) * g.taps() * (kTile / lanes) > double(1 << 24))
        throw std::invalid_argument("window: a map of too many pixels for a kernel of so many taps");
    shift_ = split_ ? g.channels * channel_stride_ : ins * g.channels;
    std::map<std::tuple<int64_t, int, int>, size_t> known;
    for (const Piece& p : pieces_.list) {
        const int vectors = (p.count + kUnit - 1) / kUnit * kUnit / lanes;
        auto found = known.emplace(std::make_tuple(p.tile % period_, p.first, vectors), patterns_.size());
        pattern_of_.push_back(found.first->second);
        if (found.second) add_pattern({p.tile % period_, p.first, p.count, 0, 1}, vectors);
    }
}

void View::add_pattern(const Piece& p, int vectors) {
    const Geometry& g = g_;
    const int64_t outs = g.out_height * g.out_width, ins = g.height * g.width;
    Pattern pattern{};
    pattern.vectors = vectors;
    pattern.start = start_.size();
    std::vector<std::pair<int32_t, uint32_t>> found;
    for (int ky = 0; ky < g.kernel_h; ky++)
        for (int kx = 0; kx < g.kernel_w; kx++)
            for (int v = 0; v < vectors; v++) {
                start_.push_back(uint32_t(segments_.size()));
                found.clear();
                for (int lane = 0; lane < lanes_; lane++) {
                    const int64_t q = p.tile * kTile + p.first + v * lanes_ + lane;
                    if (q >= g.out_pixels()) break;
                    const int64_t image = q / outs, y = q % outs / g.out_width, x = q % g.out_width;
                    const int64_t iy = y * g.stride_h - g.pad_top + int64_t(ky) * g.dilation_h;
                    const int64_t ix = x * g.stride_w - g.pad_left + int64_t(kx) * g.dilation_w;
                    if (iy < 0 || ix < 0 || iy >= g.height || ix >= g.width) continue;
                    int64_t from;
                    if (split_) {
                        const int64_t phase = ix % g.stride_w;
                        row_used_[size_t(iy)] = true;
                        from = image * shift_ + (phase * g.height + iy) * plane_width_ + ix / g.stride_w;
                    } else {
                        const int64_t at = image * ins + iy * g.width + ix;
                        from = at / kTile * (g.channels * kTile) + at % kTile;
                    }
                    const int32_t lane0 = int32_t(from - step_ * lane);
                    size_t i = 0;
                    while (i < found.size() && found[i].first != lane0) i++;
                    if (i == found.size()) found.push_back({lane0, 0});
                    found[i].second |= 1u << (step_ * lane);
                }
                for (auto& f : found) segments_.push_back({f.first, f.second});
            }
    start_.push_back(uint32_t(segments_.size()));
    add_moves(pattern);
    add_lines(pattern);
    patterns_.push_back(pattern);
}

void View::add_moves(Pattern& p) {
    const uint32_t* start = start_.data() + p.start;
    uint32_t full = 0;
    for (int lane = 0; lane < lanes_; lane++) full |= 1u << (step_ * lane);
    std::vector<Move> whole, masked, over;
    for (int i = 0; i < g_.taps() * p.vectors; i++) {
        const uint32_t to = uint32_t(i / p.vectors * kTile + i % p.vectors * lanes_);
        const Segment *s = segments_.data() + start[i], *end = segments_.data() + start[i + 1];
        if (s == end) {
            masked.push_back({0, to, 0});
            continue;
        }
        (s->mask == full ? whole : masked).push_back({s->offset, to, s->mask});
        while (++s != end) over.push_back({s->offset, to, s->mask});
    }
    p.move = moves_.size();
    p.whole = uint32_t(whole.size());
    p.masked = uint32_t(masked.size());
    p.over = uint32_t(over.size());
    for (auto* list : {&whole, &masked, &over}) moves_.insert(moves_.end(), list->begin(), list->end());
}

void View::add_lines(Pattern& p) {
    constexpr int32_t line = 64 / sizeof(float);
    std::set<int32_t> found;
    for (size_t i = start_[p.start]; i < segments_.size(); i++)
        for (int bit = 0; bit < step_ * lanes_; bit++)
            if (segments_[i].mask >> bit & 1) {
                const int32_t at = segments_[i].offset + bit;
                found.insert(at - (at % line + line) % line);
            }
    p.line = lines_.size();
    p.lines = uint32_t(found.size());
    lines_.insert(lines_.end(), found.begin(), found.end());
}

Gathering View::piece(int64_t i, size_t* offset) const {
    const Pattern& p = patterns_[pattern_of_[size_t(i)]];
    *offset = size_t(pieces_.list[size_t(i)].tile / period_ * shift_);
    return {segments_.data(), start_.data() + p.start, g_.taps(), p.vectors, step_, moves_.data() + p.move,
            p.whole, p.masked, p.over, lines_.data() + p.line, p.lines};
}

const float* View::source(const Context& c, const float* map, float* planes) const {
    if (!split_) return map;
    const int64_t per_image = g_.height * g_.width;
    constexpr int64_t group = 16;  // channels of one item
    const int64_t groups = (g_.channels + group - 1) / group;
    c.pool.each(g_.n * groups, [&](int64_t item, int) {
        const int64_t image = item / groups, c0 = item % groups * group, c1 = std::min(g_.channels, c0 + group);
        for (int64_t ch = c0; ch < c1; ch++)
            for (int64_t y = 0; y < g_.height; y++) {
                if (!row_used_[size_t(y)]) continue;
                float* to = planes + (image * g_.channels + ch) * channel_stride_ + y * plane_width_;
                int64_t x = 0;
                while (x < g_.width) {  // pieces of the row that lie in one tile
                    const int64_t p = image * per_image + y * g_.width + x;
                    const int64_t n = std::min(g_.width - x, kTile - p % kTile);
                    const float* from = map + p / kTile * (g_.channels * kTile) + ch * kTile + p % kTile;
                    for (int64_t i = 0; i < n; i++)
                        to[(x + i) % g_.stride_w * g_.height * plane_width_ + (x + i) / g_.stride_w] = from[i];
                    x += n;
                }
            }
    });
    return planes;
}
