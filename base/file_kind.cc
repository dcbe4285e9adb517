#include "base/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "base/error.h"

namespace retort {
namespace {

using namespace std::string_view_literals;

struct Mark {
  std::string_view bytes;
  FileKind kind;
};

// These stand at the first byte, as the formats' specifications have them. The pickles are those of
// protocol 2 and later.
constexpr auto kMarks = std::to_array<Mark>({
    {"version https://git-lfs.github.com/spec/"sv, FileKind::kGitLfsPointer},

    // texts in another encoding, which their byte order mark tells
    {"\xff\xfe"sv, FileKind::kUtf16},
    {"\xfe\xff"sv, FileKind::kUtf16},

    {"\x80\x02"sv, FileKind::kPickle},
    {"\x80\x03"sv, FileKind::kPickle},
    {"\x80\x04"sv, FileKind::kPickle},
    {"\x80\x05"sv, FileKind::kPickle},

    // compressed files, which may hold what was wanted
    {"PK\x03\x04"sv, FileKind::kZip},
    {"PK\x05\x06"sv, FileKind::kZip},
    {"\x1f\x8b"sv, FileKind::kGzip},
    {"\x28\xb5\x2f\xfd"sv, FileKind::kZstd},
    {"BZh"sv, FileKind::kBzip2},
    {"\xfd"
     "7zXZ\0"sv,
     FileKind::kXz},

    // tables and tensors
    {"PAR1"sv, FileKind::kParquet},
    {"PARE"sv, FileKind::kParquet},
    {"ARROW1"sv, FileKind::kArrow},
    {"FEA1"sv, FileKind::kArrow},
    {"\xff\xff\xff\xff"sv, FileKind::kArrow},  // a stream, without a mark of the file
    {"GGUF"sv, FileKind::kGguf},
    {"\x93NUMPY"sv, FileKind::kNumpy},
    {"\x89HDF\r\n\x1a\n"sv, FileKind::kHdf5},

    // documents
    {"%PDF-"sv, FileKind::kPdf},
    {"<?xml"sv, FileKind::kXml},
    {"\xef\xbb\xbf<?xml"sv, FileKind::kXml},
});

constexpr size_t kTarMark = 257;  // where a header of ustar and of GNU's tar has its name

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool begins_with_tag(std::string_view text, std::string_view tag) {
  return text.size() > tag.size() && std::equal(tag.begin(), tag.end(), text.begin(),
                                                [](char a, char b) { return a == lower(b); });
}

bool is_html(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
  return begins_with_tag(text, "<!doctype html") || begins_with_tag(text, "<html") ||
         begins_with_tag(text, "<head") || begins_with_tag(text, "<body");
}

// The file begins with eight bytes of length, then a JSON object; the length of a header that fits
// into memory ends in zeros.
bool is_safetensors(std::string_view text) {
  return text.size() > 9 && text[8] == '{' && text.substr(5, 3) == "\0\0\0"sv &&
         (text[9] == '"' || text[9] == '}' || text[9] == ' ');
}

// True for Latin text in two bytes each, without the mark at the beginning.
bool is_unmarked_utf16(std::string_view text) {
  if (text.size() < 8) return false;
  for (const size_t zero : {size_t{0}, size_t{1}}) {
    bool fits = true;
    for (size_t i = 0; i < 8; ++i)
      fits = fits && (text[i] == '\0') == (i % 2 == zero);
    if (fits) return true;
  }
  return false;
}

}  // namespace

FileKind file_kind(std::string_view beginning) {
  beginning = beginning.substr(0, kFileKindBytes);
  if (is_safetensors(beginning)) return FileKind::kSafetensors;
  for (const Mark& mark : kMarks) {
    if (!beginning.starts_with(mark.bytes)) continue;
    if (mark.kind != FileKind::kZip) return mark.kind;
    const bool torch = beginning.find("/data.pkl") != std::string_view::npos;
    return torch ? FileKind::kTorchSaved : FileKind::kZip;
  }
  if (is_html(beginning)) return FileKind::kHtml;
  if (beginning.size() > kTarMark && beginning.substr(kTarMark).starts_with("ustar"))
    return FileKind::kTar;
  return is_unmarked_utf16(beginning) ? FileKind::kUtf16 : FileKind::kUnknown;
}

FileKind file_kind_of(const std::filesystem::path& path) {
  // Opening anything else might wait for ever.
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return FileKind::kUnknown;
  std::array<char, kFileKindBytes> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  return file_kind(
      {bytes.data(), static_cast<size_t>(std::max<std::streamsize>(0, file.gcount()))});
}

std::string_view what_it_is(FileKind kind) {
  switch (kind) {
    case FileKind::kUnknown: return "";
    case FileKind::kGitLfsPointer: return "a Git LFS pointer (the address of a file, not the file)";
    case FileKind::kHtml: return "an HTML page, such as a server's answer to a wrong address";
    case FileKind::kXml: return "XML";
    case FileKind::kUtf16: return "UTF-16 text";
    case FileKind::kPickle: return "a pickle of Python";
    case FileKind::kTorchSaved: return "an archive of torch.save (a pickle)";
    case FileKind::kZip: return "a ZIP archive";
    case FileKind::kTar: return "a tar archive";
    case FileKind::kGzip: return "compressed with gzip";
    case FileKind::kZstd: return "compressed with Zstandard";
    case FileKind::kBzip2: return "compressed with bzip2";
    case FileKind::kXz: return "compressed with xz";
    case FileKind::kParquet: return "a Parquet table";
    case FileKind::kArrow: return "an Arrow table";
    case FileKind::kSafetensors: return "a safetensors file";
    case FileKind::kGguf: return "a GGUF model";
    case FileKind::kNumpy: return "an array of NumPy";
    case FileKind::kHdf5: return "an HDF5 file";
    case FileKind::kPdf: return "a PDF document";
  }
  return "";
}

std::string_view what_helps(FileKind kind) {
  switch (kind) {
    case FileKind::kGitLfsPointer: return "fetch the file itself: git lfs pull";
    case FileKind::kHtml: return "download the file itself and look into it: head -c 200";
    case FileKind::kUtf16: return "turn it into UTF-8: iconv -f UTF-16 -t UTF-8";
    case FileKind::kZip: return "unpack it: unzip";
    case FileKind::kTar: return "unpack it: tar -xf";
    case FileKind::kGzip: return "unpack it: gunzip";
    case FileKind::kZstd: return "unpack it: unzstd";
    case FileKind::kBzip2: return "unpack it: bunzip2";
    case FileKind::kXz: return "unpack it: unxz";
    default: return "";
  }
}

std::string description(FileKind kind) {
  if (kind == FileKind::kUnknown) return "";
  const std::string_view helps = what_helps(kind);
  return "is " + std::string(what_it_is(kind)) + (helps.empty() ? "" : "; " + std::string(helps));
}

void expect_text(std::string_view text, const std::string& name, std::string_view expected) {
  const std::string other = description(file_kind(text));
  if (other.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              name + ": " + other + "; expected " + std::string(expected))
      .with("file", name);
}

}  // namespace retort
