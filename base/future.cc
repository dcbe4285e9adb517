#include "base/future.h"

namespace retort::future_detail {
namespace {
thread_local int loop_depth = 0;
}

bool on_loop_thread() { return loop_depth > 0; }
LoopThreadScope::LoopThreadScope() { ++loop_depth; }
LoopThreadScope::~LoopThreadScope() { --loop_depth; }

}  // namespace retort::future_detail
