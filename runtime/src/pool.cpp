#include "pool.h"

#include <algorithm>
#include <chrono>

namespace {
void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}
// Longer than the gap between two layers, and between two runs of a program that does little else.
constexpr auto kSpin = std::chrono::microseconds(1000);
constexpr int64_t kMost = int64_t(1) << 31;  // items that a share can count

uint64_t both(int64_t low, int64_t high) { return uint64_t(low) << 32 | uint64_t(high); }
int64_t low_of(uint64_t left) { return int64_t(left >> 32); }
int64_t high_of(uint64_t left) { return int64_t(left & 0xffffffffu); }
}  // namespace

Pool::Pool(int threads) : shares_(new Share[size_t(std::max(1, threads))]) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(sleep_);
        stop_ = true;
        epoch_++;
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
}

bool Pool::take(int slot, int64_t* begin, int64_t* end) {
    auto& left = shares_[size_t(slot)].left;
    uint64_t now = left.load();
    for (;;) {
        *begin = low_of(now);
        if (*begin >= high_of(now)) return false;
        *end = std::min(high_of(now), (*begin / grain_ + 1) * grain_);
        if (left.compare_exchange_weak(now, both(*end, high_of(now)))) return true;
    }
}

bool Pool::steal(int slot, int64_t* item) {
    for (int i = 1; i < threads(); i++) {
        auto& left = shares_[size_t((slot + i) % threads())].left;
        uint64_t now = left.load();
        while (low_of(now) < high_of(now))
            if (left.compare_exchange_weak(now, both(low_of(now), high_of(now) - 1))) {
                *item = high_of(now) - 1;
                return true;
            }
    }
    return false;
}

void Pool::work(int slot) {
    int64_t begin, end;
    while (take(slot, &begin, &end)) call_(body_, begin, end, slot);
    while (steal(slot, &begin)) call_(body_, begin, begin + 1, slot);
}

void Pool::serve(int slot) {
    uint64_t seen = 0;
    for (;;) {
        auto until = std::chrono::steady_clock::now() + kSpin;
        while (epoch_ == seen) {
            for (int i = 0; i < 32 && epoch_ == seen; i++) relax();
            if (epoch_ != seen || std::chrono::steady_clock::now() < until) continue;
            std::unique_lock<std::mutex> lock(sleep_);
            sleepers_++;
            wake_.wait(lock, [&] { return epoch_ != seen; });
            sleepers_--;
        }
        seen = epoch_;
        if (stop_) return;
        joined_++;
        if (open_) work(slot);
        joined_--;
    }
}

void Pool::run(int64_t n, int64_t grain, Call call, const void* body) {
    if (n < 1) return;
    std::unique_lock<std::mutex> own(owner_, std::defer_lock);
    if (n == 1 || n >= kMost || workers_.empty() || !own.try_lock()) {
        call(body, 0, n, 0);
        return;
    }
    grain_ = grain;
    call_ = call;
    body_ = body;
    for (int64_t i = 0, t = threads(); i < t; i++) shares_[size_t(i)].left = both(n * i / t, n * (i + 1) / t);
    open_ = true;
    epoch_++;
    if (sleepers_) {
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }
    work(0);
    open_ = false;
    for (int i = 0; joined_ != 0; i++) i < 4096 ? relax() : std::this_thread::yield();
}
