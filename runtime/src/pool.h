// A pool of threads that share the items of one loop at a time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    int threads() const { return int(workers_.size()) + 1; }

    // Calls body(begin, end, slot) for ranges that make up 0..n-1; slot < threads() tells the threads apart. Each thread
    // starts from a share of its own, the same in every loop of so many items: what it wrote in one loop is still in its
    // cache when it reads it in the next. It goes through the share in ranges that end at multiples of `grain`, then
    // takes single items that others have not begun. When another caller holds the pool, all items run here. The body
    // must not throw.
    template <class Body>
    void ranges(int64_t n, int64_t grain, const Body& body) {
        run(n, grain, [](const void* b, int64_t i, int64_t j, int slot) { (*static_cast<const Body*>(b))(i, j, slot); },
            &body);
    }

    // Calls body(item, slot) for items 0..n-1.
    template <class Body>
    void each(int64_t n, const Body& body) {
        ranges(n, 1, [&](int64_t i, int64_t end, int slot) {
            for (; i < end; i++) body(i, slot);
        });
    }

private:
    typedef void (*Call)(const void*, int64_t, int64_t, int);
    // Items [low, high) of a share that nobody has taken, in the two halves of one number.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
    };
    void run(int64_t n, int64_t grain, Call call, const void* body);
    void serve(int slot);
    void work(int slot);
    bool take(int slot, int64_t* begin, int64_t* end);
    bool steal(int slot, int64_t* item);

    std::vector<std::thread> workers_;
    std::mutex owner_;                  // held by the caller whose loop is running
    std::mutex sleep_;
    std::condition_variable wake_;
    alignas(64) std::atomic<uint64_t> epoch_{0};  // counts loops
    std::atomic<bool> open_{false};     // a loop may be joined
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    int64_t grain_ = 1;
    Call call_ = nullptr;
    const void* body_ = nullptr;
    std::unique_ptr<Share[]> shares_;
    alignas(64) std::atomic<int> joined_{0};      // workers inside the loop
};
