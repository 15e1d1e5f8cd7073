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

    // Calls body(item, slot) for all items; slot < threads() tells the threads apart. Thread s starts with items
    // [starts[s], starts[s + 1]), in order, then takes items that others have not begun. When another caller holds the
    // pool, all items run here. The body must not throw.
    template <class Body>
    void each(const std::vector<int64_t>& starts, const Body& body) {
        run(starts.data(), call<Body>, &body);
    }

    // The same for items 0..n-1, in equal shares.
    template <class Body>
    void each(int64_t n, const Body& body) {
        run(n, call<Body>, &body);
    }

private:
    typedef void (*Call)(const void*, int64_t, int);
    template <class Body>
    static void call(const void* body, int64_t item, int slot) {
        (*static_cast<const Body*>(body))(item, slot);
    }
    // Items [low, high) of a share that nobody has taken, in the two halves of one number.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
        bool some() const {
            const uint64_t now = left.load();
            return now >> 32 < (now & 0xffffffffu);
        }
    };
    void run(int64_t n, Call call, const void* body);
    void run(const int64_t* starts, Call call, const void* body);
    void serve(int slot);
    void work(int slot);
    bool take(int slot, bool own, int64_t least, int64_t* item);

    std::vector<std::thread> workers_;
    std::mutex owner_;                  // held by the caller whose loop is running
    std::mutex sleep_;
    std::condition_variable wake_;
    alignas(64) std::atomic<uint64_t> epoch_{0};  // counts loops
    std::atomic<bool> open_{false};     // a loop may be joined
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    Call call_ = nullptr;
    const void* body_ = nullptr;
    std::unique_ptr<Share[]> shares_;
    alignas(64) std::atomic<int> joined_{0};      // workers inside the loop
};
