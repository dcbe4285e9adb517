#include "recipes/distill/byte_groups.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"

namespace retort::recipes {
namespace {

// So many equal bytes are no chance.
constexpr size_t kProvenBytes = 16;

struct TokenRange {
  int64_t begin = 0, end = 0;
};

std::vector<TokenRange> target_runs(const SideTokens& side) {
  RETORT_CHECK(side.ids.size() == side.is_target.size()) << "a mark for each token";
  std::vector<TokenRange> runs;
  const auto size = static_cast<int64_t>(side.ids.size());
  for (int64_t i = 0; i < size; ++i) {
    if (!side.is_target[i]) continue;
    if (runs.empty() || runs.back().end != i) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  return runs;
}

// What one side said in a run.
struct SaidTokens {
  TokenRange tokens;      // without what ends the turn
  int64_t end_sign = -1;  // the special token behind them; -1: none
  std::string bytes;
};

constexpr std::string_view kWhite = " \t\n\v\f\r";

SaidTokens said_in(const SideTokens& side, TokenRange run) {
  const auto is_special = [&](int64_t i) { return side.bytes.is_special(side.ids[i]); };
  const auto is_blank = [&](int64_t i) {
    return !is_special(i) &&
           side.bytes.of(side.ids[i]).find_first_not_of(kWhite) == std::string_view::npos;
  };

  SaidTokens said{.tokens = run};
  int64_t end = run.end;
  while (end > run.begin && is_blank(end - 1))
    --end;
  while (end > run.begin && is_special(end - 1))
    said.tokens.end = said.end_sign = --end;
  for (int64_t i = run.begin; i < said.tokens.end; ++i)
    said.bytes += side.bytes.of(side.ids[i]);
  // What is drawn may end within a character, or be no text at all.
  said.bytes.resize(utf8_prefix(said.bytes));
  return said;
}

// A side that reads the other one's chat template has that one's sign as words of its own.
void leave_out_sign(SaidTokens& said, const SideTokens& other, const SaidTokens& by_other) {
  if (said.end_sign >= 0 || by_other.end_sign < 0) return;
  const std::string_view sign = other.bytes.of(other.ids[by_other.end_sign]);
  const size_t end = said.bytes.find_last_not_of(kWhite) + 1;  // npos + 1 is 0
  if (std::string_view(said.bytes).substr(0, end).ends_with(sign))
    said.bytes.resize(end - sign.size());
}

// What a side has before the first byte that both have.
struct Beginning {
  size_t space = 0;    // 1: a space that does not count
  size_t surplus = 0;  // bytes behind it that only this side has
};

// How what both sides said lies one upon the other.
struct Overlay {
  Beginning student, teacher;
  size_t common = 0;      // bytes that both have
  bool is_whole = false;  // but for white space both end with them

  bool has_surplus() const { return student.surplus + teacher.surplus > 0; }
};

// What both said, one of them perhaps without a space before it.
struct SaidPair {
  std::string_view student, teacher;
  Overlay overlay;
};

std::vector<SaidPair> readings(std::string_view student, std::string_view teacher) {
  std::vector<SaidPair> pairs{{student, teacher, {}}};
  if (student.starts_with(' '))
    pairs.push_back({student.substr(1), teacher, {.student = {.space = 1}}});
  if (teacher.starts_with(' '))
    pairs.push_back({student, teacher.substr(1), {.teacher = {.space = 1}}});
  return pairs;
}

size_t common_beginning(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Lays the ends of both upon each other: by a reading without surplus if there is one, and of these
// by the one with the most bytes in common.
std::optional<Overlay> overlay_of_ends(std::string_view student, std::string_view teacher) {
  std::optional<Overlay> found;
  for (const SaidPair& pair : readings(student, teacher)) {
    // Trailing white space is compared apart, as one side may have less of it.
    const size_t student_size = pair.student.find_last_not_of(kWhite) + 1;  // npos + 1 is 0
    const size_t teacher_size = pair.teacher.find_last_not_of(kWhite) + 1;
    const size_t shorter = std::min(student_size, teacher_size);
    if (pair.student.substr(student_size - shorter, shorter) !=
        pair.teacher.substr(teacher_size - shorter, shorter))
      continue;

    Overlay overlay = pair.overlay;
    overlay.is_whole = true;
    overlay.student.surplus = student_size - shorter;
    overlay.teacher.surplus = teacher_size - shorter;
    overlay.common = shorter + common_beginning(pair.student.substr(student_size),
                                                pair.teacher.substr(teacher_size));
    // An answer of white space alone can be read in several ways without surplus.
    const bool is_better =
        found && !overlay.has_surplus() && (found->has_surplus() || overlay.common > found->common);
    if (!found || is_better) found = overlay;
  }
  return found;
}

// The first place from which on `text` goes like `pattern`, up to the end of either; the size of
// `text` if there is none. By Knuth, Morris and Pratt, as it must be linear.
size_t first_overlap(std::string_view text, std::string_view pattern) {
  std::vector<size_t> border(pattern.size() + 1, 0);  // of each beginning of the pattern
  for (size_t i = 1, length = 0; i < pattern.size(); ++i) {
    while (length > 0 && pattern[i] != pattern[length])
      length = border[length];
    if (pattern[i] == pattern[length]) ++length;
    border[i + 1] = length;
  }

  size_t matched = 0;
  for (size_t i = 0; i < text.size() && !pattern.empty(); ++i) {
    while (matched > 0 && text[i] != pattern[matched])
      matched = border[matched];
    if (text[i] == pattern[matched]) ++matched;
    if (matched == pattern.size()) return i + 1 - matched;
  }
  return text.size() - matched;
}

// Lays a beginning of what was said, the student's, upon all of it.
std::optional<Overlay> overlay_of_beginning(std::string_view student, std::string_view teacher) {
  const std::vector<SaidPair> pairs = readings(student, teacher);
  for (const SaidPair& pair : pairs) {
    Overlay overlay = pair.overlay;
    overlay.common = pair.student.size();
    if (pair.teacher.starts_with(pair.student)) return overlay;
  }

  // One side begins with more: the student's rest must be found in the teacher's words.
  for (const SaidPair& pair : pairs) {
    const auto& [said, all, spaces] = pair;
    Overlay overlay = spaces;
    const size_t in_teacher = first_overlap(all, said);
    overlay.teacher.surplus = in_teacher;
    overlay.common = said.size();
    if (said.size() >= kProvenBytes && in_teacher + said.size() <= all.size()) return overlay;

    const size_t in_student = first_overlap(said, all);
    overlay = spaces;
    overlay.student.surplus = in_student;
    overlay.common = said.size() - in_student;
    if (overlay.common >= kProvenBytes && overlay.common <= all.size()) return overlay;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_bytes(const std::string& origin, const SaidPair& pair, size_t offset) {
  // A character that is cut would be shown as escapes.
  size_t begin = offset;
  const auto is_inside = [&](std::string_view text) {
    return begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80;
  };
  while (begin > 0 && (is_inside(pair.student) || is_inside(pair.teacher)))
    --begin;
  const auto shown = [&](std::string_view text) {
    const std::string_view rest = text.substr(begin);
    size_t end = std::min<size_t>(rest.size(), 24);
    while (end < rest.size() && end > 0 && (static_cast<uint8_t>(rest[end]) & 0xC0) == 0x80)
      --end;
    return "'" + printable(rest.substr(0, end)) + "'";
  };
  throw Error(ErrorCode::kInvalidArgument,
              origin +
                  ": the teacher's tokenizer reads other bytes than the student's: they differ at "
                  "offset " +
                  std::to_string(offset) + " of the answer (" + shown(pair.teacher) + " and " +
                  shown(pair.student) +
                  "); where a tokenizer normalises texts (NFC) write the rows in that form, where "
                  "the chat templates print other words use distill.teacher_template: student");
}

// How both sides of a run lie one upon the other; none: a cut run that tells nothing.
std::optional<Overlay> overlay_of(const SaidTokens& student, const SaidTokens& teacher,
                                  const std::string& origin, bool is_cut) {
  const std::optional<Overlay> whole = overlay_of_ends(student.bytes, teacher.bytes);
  const bool ends = !is_cut || student.end_sign >= 0;
  if (whole && (ends || !whole->has_surplus())) return whole;
  if (is_cut) {
    // A few bytes may end the teacher's answer by chance, so that the beginning is looked at first.
    const std::optional<Overlay> cut = overlay_of_beginning(student.bytes, teacher.bytes);
    if (cut && !cut->has_surplus()) return cut;
    if (whole && whole->common >= kProvenBytes) return whole;
    if (cut) return cut;
  }

  // The reading that goes furthest says best where they differ.
  size_t offset = 0;
  const std::vector<SaidPair> pairs = readings(student.bytes, teacher.bytes);
  const SaidPair* furthest = &pairs.front();
  for (const SaidPair& pair : pairs) {
    const size_t equal = common_beginning(pair.student, pair.teacher);
    if (equal <= offset) continue;
    offset = equal;
    furthest = &pair;
  }
  // A cut run with surplus can end before its answer has begun.
  if (is_cut && offset < kProvenBytes) return std::nullopt;
  refuse_bytes(origin, *furthest, offset);
}

// Reads the tokens of one side.
struct ByteReader {
  const SideTokens& side;
  int64_t next = 0, end = 0;  // tokens
  int64_t group_begin = 0;
  int64_t at = 0;  // bytes read, from the first that both sides have

  bool is_done() const { return next == end; }
  std::string_view bytes() const { return side.bytes.of(side.ids[next]); }
  void read() {
    at += static_cast<int64_t>(bytes().size());
    ++next;
  }
  // Behind tokens without bytes, if nothing else is left.
  int64_t last_group_end() const {
    ByteReader rest{.side = side, .next = group_begin, .end = end};
    while (!rest.is_done() && rest.bytes().empty())
      rest.read();
    return rest.is_done() ? end : group_begin;
  }
};

ByteReader reader_of(const SideTokens& side, const SaidTokens& said, Beginning beginning) {
  ByteReader reader{.side = side, .next = said.tokens.begin, .end = said.tokens.end};
  reader.at = -static_cast<int64_t>(beginning.space + beginning.surplus);
  // A space is read with the first group; surplus is in none.
  while (beginning.surplus > 0 && reader.at < 0)
    reader.read();
  reader.group_begin = reader.next;
  return reader;
}

void append_groups(ByteReader student, ByteReader teacher, int64_t common,
                   std::vector<ByteGroup>& groups) {
  // Surplus that ends within a token goes on to the first place where both are cut.
  bool counts = student.at <= 0 && teacher.at <= 0;
  const size_t first = groups.size();
  int64_t closed = 0;
  while (true) {
    ByteReader& behind = student.at <= teacher.at ? student : teacher;
    if (behind.is_done()) break;
    behind.read();
    if (behind.at > common) break;
    if (student.at != teacher.at || student.at <= closed) continue;
    if (counts)
      groups.push_back({.student_begin = student.group_begin,
                        .student_end = student.next,
                        .teacher_begin = teacher.group_begin,
                        .teacher_end = teacher.next});
    counts = true;
    closed = student.at;
    student.group_begin = student.next;
    teacher.group_begin = teacher.next;
  }

  if (groups.size() == first) return;
  groups.back().student_end = student.last_group_end();
  groups.back().teacher_end = teacher.last_group_end();
}

void check_runs(size_t student, size_t teacher, const std::string& origin, bool student_is_cut) {
  if (student == teacher || (student_is_cut && student < teacher)) return;
  throw Error(ErrorCode::kInvalidArgument,
              origin + ": the student's row has " + std::to_string(student) +
                  " answers and the teacher's " + std::to_string(teacher) +
                  ", of which the i-th must belong together; where the chat templates mark other "
                  "messages use distill.teacher_template: student");
}

}  // namespace

std::vector<ByteGroup> byte_groups(const SideTokens& student, const SideTokens& teacher,
                                   const std::string& origin, bool student_is_cut) {
  const std::vector<TokenRange> student_runs = target_runs(student);
  const std::vector<TokenRange> teacher_runs = target_runs(teacher);
  check_runs(student_runs.size(), teacher_runs.size(), origin, student_is_cut);

  std::vector<ByteGroup> groups;
  for (size_t i = 0; i < student_runs.size(); ++i) {
    SaidTokens by_student = said_in(student, student_runs[i]);
    SaidTokens by_teacher = said_in(teacher, teacher_runs[i]);
    leave_out_sign(by_teacher, student, by_student);
    leave_out_sign(by_student, teacher, by_teacher);
    const bool is_cut = student_is_cut && i + 1 == student_runs.size();
    const std::optional<Overlay> overlay = overlay_of(by_student, by_teacher, origin, is_cut);
    if (!overlay) continue;
    append_groups(reader_of(student, by_student, overlay->student),
                  reader_of(teacher, by_teacher, overlay->teacher),
                  static_cast<int64_t>(overlay->common), groups);

    // The end of a turn is said only where all before it was.
    if (!overlay->is_whole || by_student.end_sign < 0 || by_teacher.end_sign < 0) continue;
    groups.push_back({.student_begin = by_student.end_sign,
                      .student_end = by_student.end_sign + 1,
                      .teacher_begin = by_teacher.end_sign,
                      .teacher_end = by_teacher.end_sign + 1,
                      .ends_turn = true});
  }
  return groups;
}

}  // namespace retort::recipes
