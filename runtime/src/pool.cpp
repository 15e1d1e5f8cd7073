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
constexpr int kPatience = 500;
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

bool Pool::take(int slot, bool own, int64_t least, int64_t* item) {
    auto& left = shares_[size_t(slot)].left;
    uint64_t now = left.load();
    while (low_of(now) + least <= high_of(now)) {
        *item = own ? low_of(now) : high_of(now) - 1;
        if (left.compare_exchange_weak(now, own ? now + both(1, 0) : now - 1)) return true;
    }
    return false;
}

void Pool::work(int slot) {
    int64_t item;
    while (take(slot, true, 1, &item)) call_(body_, item, slot);
    // An item taken from another thread is then in the wrong cache, for the next loop too. The last of a share is left to
    // its owner, unless that one does not come.
    for (int64_t least : {2, 1}) {
        for (int i = 1; i < threads(); i++) {
            const int other = (slot + i) % threads();
            for (int wait = 0; least == 1 && wait < kPatience && shares_[size_t(other)].some(); wait++) relax();
            while (take(other, false, least, &item)) call_(body_, item, slot);
        }
    }
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

void Pool::run(int64_t n, Call call, const void* body) {
    if (n <= 1 || n >= kMost || workers_.empty()) {
        for (int64_t i = 0; i < n; i++) call(body, i, 0);
        return;
    }
    std::vector<int64_t> starts;
    for (int64_t i = 0, t = threads(); i <= t; i++) starts.push_back(n * i / t);
    run(starts.data(), call, body);
}

void Pool::run(const int64_t* starts, Call call, const void* body) {
    const int64_t n = starts[threads()];
    std::unique_lock<std::mutex> own(owner_, std::defer_lock);
    if (n <= 1 || workers_.empty() || !own.try_lock()) {
        for (int64_t i = 0; i < n; i++) call(body, i, 0);
        return;
    }
    call_ = call;
    body_ = body;
    for (int i = 0; i < threads(); i++) shares_[size_t(i)].left = both(starts[i], starts[i + 1]);
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
