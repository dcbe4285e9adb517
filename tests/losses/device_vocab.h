// A vocabulary that two ranks on devices share: what they put together of a row stays on the
// devices, and the losses are those of one rank on the CPU.
#pragma once

namespace retort::losses::testing {

// In each of two ranks that a test has started: a world of its own, in which each rank has one of
// the two devices that STAND_IN_DEVICES names. It comes before the process's first tensor on the
// stand-in. Throws what is not as it should be.
void device_vocab_scenario();

}  // namespace retort::losses::testing
