// Small kernels that measure the machine itself, with the words that workers are made of: what a
// read of memory can reach, and what an event, a ticket, a page and a barrier cost on this card.
// Launched with one block per SM (runtime/cuda_probe.cc).
#pragma once

#include "device/atomic.h"
#include "device/pages.h"

namespace eventide {

inline constexpr u32 kProbeThreads = 1024;
inline constexpr u32 kProbeVectors = 8;  // 16-byte loads in flight of one thread

EVT_FN u64 ProbeNowNs() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
EVT_FN u32* ProbeWord(u32* words, u32 i) {
  return words + u64{i} * (kEventStrideBytes / 4);
}

EVT_FN u32 ProbeLoad(const u8* p) {
  u32 a, b, c, d;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(p));
  return a ^ b ^ c ^ d;
}

// Reads `bytes` (a multiple of 16 * kProbeVectors) once; `sink` keeps the loads from being dropped.
EVT_FN void ProbeRead(const u8* data, u64 bytes, u32* sink) {
  const u64 stride = u64{gridDim.x} * kProbeThreads * 16;
  u32 sum = 0;
  u64 at = (u64{blockIdx.x} * kProbeThreads + threadIdx.x) * 16;
  for (; at + (kProbeVectors - 1) * stride < bytes; at += kProbeVectors * stride) {
    u32 part[kProbeVectors];
#pragma unroll
    for (u32 i = 0; i < kProbeVectors; ++i) part[i] = ProbeLoad(data + at + i * stride);
#pragma unroll
    for (u32 i = 0; i < kProbeVectors; ++i) sum ^= part[i];
  }
  for (; at < bytes; at += stride) sum ^= ProbeLoad(data + at);
  if (sum == 0x9e3779b9u) *sink = sum;
}

// Block 0 sends a signal to each other block in turn and waits for the answer, `rounds` times.
// ns[b]: one way to block b, times 2 * rounds.
EVT_FN void ProbeHop(u32* words, u64* ns, u32 rounds) {
  if (threadIdx.x != 0) return;
  for (u32 b = 1; b < gridDim.x; ++b) {
    if (blockIdx.x != 0 && blockIdx.x != b) continue;
    u32* there = ProbeWord(words, 2 * b);
    u32* back = ProbeWord(words, 2 * b + 1);
    const u64 start = ProbeNowNs();
    for (u32 round = 1; round <= rounds; ++round) {
      if (blockIdx.x == 0) {
        // Counterpart: the acquire of block b; its answer's is the one below.
        DirectSync::AddRelease(there, 1);
        while (DirectSync::LoadAcquire(back) < round) {
        }
      } else {
        while (DirectSync::LoadAcquire(there) < round) {
        }
        DirectSync::AddRelease(back, 1);
      }
    }
    if (blockIdx.x == 0) ns[b] = ProbeNowNs() - start;
  }
}

// Every block of the launch takes `rounds` tickets from one counter. ns[block]: for all of them.
EVT_FN void ProbeTicket(u32* words, u64* ns, u32 rounds) {
  if (threadIdx.x != 0) return;
  // All start together: a barrier of releases and acquires on one word.
  DirectSync::AddRelease(ProbeWord(words, 1), 1);
  while (DirectSync::LoadAcquire(ProbeWord(words, 1)) < gridDim.x) {
  }
  u32 last = 0;
  const u64 start = ProbeNowNs();
  // Each pop depends on the one before: what is timed is a pop's latency.
  for (u32 round = 0; round < rounds; ++round) {
    last = DirectSync::FetchAddRelaxed(ProbeWord(words, last == ~0u ? 2 : 0), 1);
  }
  ns[blockIdx.x] = ProbeNowNs() - start;
}

// Grants and returns of pages of a pool of 12: `lanes` warps, each a lane of its own. ns[lane]: of
// `rounds` pairs.
EVT_FN void ProbePage(u32* words, u64* ns, u32 rounds) {
  __shared__ PagePool<DirectSync> pool;
  const u32 lane = threadIdx.x / 32;
  if (threadIdx.x == 0) pool.Reset(12, 2, 2);
  __syncthreads();
  if (blockIdx.x != 0 || threadIdx.x % 32 != 0 || lane >= kLanes) return;
  const u64 start = ProbeNowNs();
  u32 refused = 0;
  for (u32 round = 0; round < rounds; ++round) {
    const i32 page = pool.TryGrant(lane);
    if (page < 0) {
      ++refused;
    } else {
      pool.Return(lane, page);
    }
  }
  ns[lane] = ProbeNowNs() - start;
  if (refused > 0) *ProbeWord(words, 0) = refused;
}

// `rounds` barriers of all blocks on one counter.
EVT_FN void ProbeBarrier(u32* words, u64* ns, u32 rounds) {
  if (threadIdx.x != 0) return;
  const u64 start = ProbeNowNs();
  for (u32 round = 1; round <= rounds; ++round) {
    // Counterpart: the acquires of all other blocks.
    DirectSync::AddRelease(ProbeWord(words, 0), 1);
    while (DirectSync::LoadAcquire(ProbeWord(words, 0)) < round * gridDim.x) {
    }
  }
  ns[blockIdx.x] = ProbeNowNs() - start;
}

}  // namespace eventide

// Kernels by name; no header that a megakernel includes has any.
extern "C" __global__ void __launch_bounds__(eventide::kProbeThreads, 1)
    probe_read(const eventide::u8* data, eventide::u64 bytes, eventide::u32* sink) {
  eventide::ProbeRead(data, bytes, sink);
}
extern "C" __global__ void probe_hop(eventide::u32* words, eventide::u64* ns,
                                     eventide::u32 rounds) {
  eventide::ProbeHop(words, ns, rounds);
}
extern "C" __global__ void probe_ticket(eventide::u32* words, eventide::u64* ns,
                                        eventide::u32 rounds) {
  eventide::ProbeTicket(words, ns, rounds);
}
extern "C" __global__ void probe_page(eventide::u32* words, eventide::u64* ns,
                                      eventide::u32 rounds) {
  eventide::ProbePage(words, ns, rounds);
}
extern "C" __global__ void probe_barrier(eventide::u32* words, eventide::u64* ns,
                                         eventide::u32 rounds) {
  eventide::ProbeBarrier(words, ns, rounds);
}
