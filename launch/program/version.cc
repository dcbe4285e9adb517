#include "launch/program/version.h"

#include <elf.h>
#include <link.h>

#include <torch/headeronly/version.h>

#include <string_view>

#include "parallel/device_module.h"

namespace retort::launch {
namespace {

// The linker's hash of what it linked, from the notes of this program; "" if it wrote none.
std::string build_id() {
  std::string id;
  const auto of_program = [](dl_phdr_info* info, size_t, void* result) {
    for (const auto* head = info->dlpi_phdr; head != info->dlpi_phdr + info->dlpi_phnum; ++head) {
      if (head->p_type != PT_NOTE) continue;
      const char* at = reinterpret_cast<const char*>(info->dlpi_addr + head->p_vaddr);
      const char* end = at + head->p_memsz;
      // A note's name and content are each padded to four bytes.
      while (at + sizeof(ElfW(Nhdr)) <= end) {
        const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
        const char* name = at + sizeof *note;
        const char* content = name + (note->n_namesz + 3) / 4 * 4;
        if (note->n_type == NT_GNU_BUILD_ID && std::string_view(name, 3) == "GNU")
          *static_cast<std::string*>(result) = {content, note->n_descsz};
        at = content + (note->n_descsz + 3) / 4 * 4;
      }
    }
    return 1;  // the first is the program itself
  };
  ::dl_iterate_phdr(of_program, &id);
  return id;
}

}  // namespace

std::string build_text() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "retort " RETORT_VERSION ", build ";
  for (const unsigned char byte : build_id())
    (text += kDigits[byte >> 4]) += kDigits[byte & 15];
  return text;
}

std::string version_text() {
  return std::string("retort " RETORT_VERSION "\nLibTorch " TORCH_VERSION "\nCUDA module ") +
         (parallel::DeviceModule::present() ? "present" : "absent: it computes on the CPU");
}

}  // namespace retort::launch
