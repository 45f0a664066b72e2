// Actions before and after a call through the passage, which Recording (calls.hpp) performs in a frame of its own.
#pragma once
#include "calls.hpp"

namespace memhook {

// The call is not recorded, and calls made inside it are treated as part of it.
inline constexpr uint64_t is_left_out = ~0ull;

extern "C" uint64_t memhook_pass_begin(Frame frame, PassedCall* call) {
  RingHeader* ring = begin_call(frame);
  if (!ring) return 0;
  passed_frames[number_of(ring)] = reinterpret_cast<uint64_t>(frame);
  call->ring = ring;
  bool is_wanted = !(gate().flags & selects) || selected(ring, call->size);
  call->decided = is_wanted ? is_sample(ring, frame, call->size) : is_left_out;
  return 1;
}

extern "C" void* memhook_pass_end(Frame frame, PassedCall* call, void* block) {
  auto* ring = static_cast<RingHeader*>(call->ring);
  auto function = static_cast<uint32_t>(call->function), decided = static_cast<uint32_t>(call->decided);
  if (call->decided != is_left_out && block) record_or_pass(ring, function, frame, decided, block, call->size);
  leave(ring);
  return block;
}

}  // namespace memhook
