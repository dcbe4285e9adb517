// What a file is by its first bytes, for the message about one that is not what was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace retort {

enum class FileKind : uint8_t {
  kUnknown,  // text, and anything without a mark of its own
  kGitLfsPointer,
  kHtml,
  kXml,
  kUtf16,
  kPickle,      // of Python, also what PyTorch wrote before its archives
  kTorchSaved,  // an archive of torch.save
  kZip,
  kTar,
  kGzip,
  kZstd,
  kBzip2,
  kXz,
  kParquet,
  kArrow,
  kSafetensors,
  kGguf,
  kNumpy,
  kHdf5,
  kPdf,
};

// How many bytes file_kind() looks at.
inline constexpr size_t kFileKindBytes = 512;

// `beginning`: the first kFileKindBytes of a file, or more, or all that it has.
FileKind file_kind(std::string_view beginning);
// The kind of the file at `path`; kUnknown for one that cannot be read.
FileKind file_kind_of(const std::filesystem::path& path);

// "a Git LFS pointer (the address of the file, not the file)", to stand behind "is"; "" for
// kUnknown.
std::string_view what_it_is(FileKind kind);
// What makes the thing itself of it, whatever that was to be ("git lfs pull"): a clause without a
// full stop; "" where that depends on what was asked for.
std::string_view what_helps(FileKind kind);
// "is a Git LFS pointer (...); fetch the file itself: git lfs pull"; "" for kUnknown.
std::string description(FileKind kind);

// kInvalidArgument "NAME: is a Git LFS pointer (...); ...; expected JSON" if `text`, the content of
// a file that is called `name`, is of a known kind.
void expect_text(std::string_view text, const std::string& name, std::string_view expected);

}  // namespace retort
