// The few atomic accesses Eventide is built on, for the GPU (PTX, device scope) and for threads. One of
// the two headers that may ask which compiler reads it. Algorithms take them as a policy type, so that
// the simulator can put a switch point on both sides of every access (device/arch/sim.h).
//
// 32-bit words are always accessed as 32 bits, 64-bit words as 64: PTX says nothing about mixed sizes.
#pragma once

#include "device/base.h"

namespace eventide {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

struct DirectSync {
  // Acquires what the releases before it in the chain of read-modify-writes made visible; counterpart of
  // AddRelease. The asm has a memory clobber: without it the compiler may move plain accesses across.
  static EVT_FN u32 LoadAcquire(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  static EVT_FN u32 LoadRelaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  static EVT_FN u64 LoadRelaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  static EVT_FN void StoreRelaxed(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  static EVT_FN void StoreRelaxed(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  }
  static EVT_FN void StoreRelease(u32* p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  // Publishes every write that happens before it; counterpart of LoadAcquire.
  static EVT_FN void AddRelease(u32* p, u32 v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  // Counts that only watchers read (the progress word).
  static EVT_FN void AddRelaxed(u32* p, u32 v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  }
  // "Am I the last to arrive?": needs the old value, and both orders (a `red` never acquires).
  static EVT_FN u32 FetchAddAcqRel(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
  }
  // Tickets order nothing by themselves.
  static EVT_FN u32 FetchAddRelaxed(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
  }
  static EVT_FN bool CompareAndSwap(u32* p, u32 expected, u32 desired) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(desired)
                 : "memory");
    return old == expected;
  }
  // Words of a worker's own shared memory (the page pool): block scope is enough. Addressed as shared
  // memory: through generic addresses a 64-bit compare-and-swap is emulated.
  static EVT_FN u64 LocalLoad(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.cta.shared::cta.u64 %0, [%1];"
                 : "=l"(v)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(p)))
                 : "memory");
    return v;
  }
  static EVT_FN u64 LocalFetchAdd(u64* p, u64 v) {
    u64 old;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(p))), "l"(v)
                 : "memory");
    return old;
  }
  static EVT_FN bool LocalCompareAndSwap(u64* p, u64 expected, u64 desired) {
    u64 old;
    asm volatile("atom.acq_rel.cta.shared::cta.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(p))), "l"(expected), "l"(desired)
                 : "memory");
    return old == expected;
  }
};

#else

struct DirectSync {
  static EVT_FN u32 LoadAcquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  static EVT_FN u32 LoadRelaxed(const u32* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  static EVT_FN u64 LoadRelaxed(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
  static EVT_FN void StoreRelaxed(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  static EVT_FN void StoreRelaxed(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
  static EVT_FN void StoreRelease(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
  static EVT_FN void AddRelease(u32* p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELEASE); }
  static EVT_FN u32 FetchAddAcqRel(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
  static EVT_FN u32 FetchAddRelaxed(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
  static EVT_FN bool CompareAndSwap(u32* p, u32 expected, u32 desired) {
    return __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  static EVT_FN u64 LocalLoad(const u64* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
  static EVT_FN u64 LocalFetchAdd(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
  static EVT_FN bool LocalCompareAndSwap(u64* p, u64 expected, u64 desired) {
    return __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
};

#endif

}  // namespace eventide
