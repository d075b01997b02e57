// Longer than 400 lines because it is one generator: what it prints is one file, and each of its functions a part
// of that.
#include "jit/codegen.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "jit/page_floors.h"

namespace eventide {
namespace {

// Names may hold anything; inside a comment they must stay on their line.
std::string CommentName(const std::string& name) {
  std::string out = name;
  for (char& c : out) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return out;
}

// How leaves are spelled where they are evaluated.
struct Spelling {
  std::string coord;  // prefix: "at.at" or "index"
  std::string layer;
};
const Spelling kOfTask = {"at.at", "at.layer"};
const Spelling kOfGrid = {"", "layer"};
const Spelling kOfElement = {"index", ""};

class Generator {
 public:
  Generator(const Program& program, const CodegenTarget& target) : p_(program), target_(target) {}

  std::string Run() {
    Head();
    Structure();
    Extents();
    Boxes("Publication", "i32 layer", kOfGrid, &ProgramGrid::extent_publications);
    StepWide();
    Boxes("EdgePublication", "const Coord& at", kOfTask, &ProgramGrid::edge_publications);
    Boxes("WaitBox", "const Coord& at", kOfTask, &ProgramGrid::waits);
    Boxes("NotifyBox", "const Coord& at", kOfTask, &ProgramGrid::notifies);
    Events();
    Parts();
    Dims();
    Tail();
    return std::move(out_);
  }

 private:
  void Line(absl::string_view text) { absl::StrAppend(&out_, text, "\n"); }

  std::string Cpp(const Expr& expr, const Spelling& spelling) const {
    ExprNames names;
    names.leaf = [&](const Expr& leaf) -> std::string {
      switch (leaf.kind()) {
        case ExprKind::kSymbol:
          return absl::StrCat("step.symbols[", leaf.index(), "]");
        case ExprKind::kCoord:
          return absl::StrCat(spelling.coord, "[", leaf.index(), "]");
        case ExprKind::kLayer:
          return spelling.layer;
        default:
          return absl::StrCat("Load(", leaf.index(), ", ", Cpp(leaf.a(), spelling), ")");
      }
    };
    std::string text = ToCpp(expr, names);
    // The outermost parentheses of an infix expression say nothing.
    if (text.size() > 2 && text.front() == '(' && Closing(text) == text.size() - 1) {
      text = text.substr(1, text.size() - 2);
    }
    return text;
  }

  static size_t Closing(const std::string& text) {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
      if (depth == 0) return i;
    }
    return std::string::npos;
  }

  // switch (key) with one statement per key; equal statements share their case labels, and the most
  // frequent one is the default.
  void Switch(const char* key, const std::vector<std::string>& statements,
              const std::vector<std::string>& names) {
    std::vector<std::string> distinct;
    for (const std::string& s : statements) {
      if (std::find(distinct.begin(), distinct.end(), s) == distinct.end()) distinct.push_back(s);
    }
    if (distinct.empty()) return;
    const auto frequency = [&](const std::string& s) {
      return std::count(statements.begin(), statements.end(), s);
    };
    const std::string common = *std::max_element(
        distinct.begin(), distinct.end(),
        [&](const std::string& a, const std::string& b) { return frequency(a) < frequency(b); });
    if (distinct.size() > 1) {
      Line(absl::StrCat("    switch (", key, ") {"));
      for (const std::string& s : distinct) {
        if (s == common) continue;
        for (size_t i = 0; i < statements.size(); ++i) {
          if (statements[i] == s)
            Line(absl::StrCat("      case ", i, ":  // ", CommentName(names[i])));
        }
        Line(absl::StrCat("        ", s));
      }
      Line("    }");
    }
    Line(absl::StrCat("    ", common));
  }

  // EVT_FN signature { switch (grid) ... }
  template <class F>
  void OverGrids(absl::string_view signature, const F& statement) {
    std::vector<std::string> statements, names;
    for (size_t g = 0; g < p_.grids.size(); ++g) {
      statements.push_back(statement(p_.grids[g], static_cast<int>(g)));
      names.push_back(p_.grids[g].name);
    }
    Line(absl::StrCat("  EVT_FN ", signature, " const {"));
    if (statements.empty()) statements = {"return {};"}, names = {""};
    Switch("grid", statements, names);
    Line("  }");
  }

  void Head() {
    Line(absl::StrCat("// ", CommentName(p_.name), ": made by jit/codegen.cc from the graph."));
    Line(absl::StrCat("#include \"", target_.header, "\""));
    Line("#include \"device/atomic.h\"");
    Line("#include \"device/generated.h\"");
    Line("#include \"device/loop.h\"");
    std::set<std::string> ops;
    for (const ProgramKind& kind : p_.kinds) ops.insert(kind.op->name);
    for (const std::string& op : ops) Line(absl::StrCat("#include \"ops/", op, ".h\""));
    Line("\nnamespace eventide {\n\nstruct GeneratedProgram {");
    Line("  const ProgramRecord& record;\n");
    const PageFloors floors = FloorsOf(p_, target_.stream_floor);
    if (target_.timeline) Line("  static constexpr bool kTimeline = true;");
    Line("  // Pages each lane must be able to hold: the largest floor of the ops below, and of the port.");
    Line(absl::StrCat("  static constexpr u32 kStreamFloor = ", floors.stream, ";"));
    Line(absl::StrCat("  static constexpr u32 kInputFloor = ", floors.input, ";\n"));
  }

  void Structure() {
    Line(absl::StrCat("  EVT_FN int Sections() const { return ", p_.sections.size(), "; }"));
    const auto sections = [&](const char* name, auto value) {
      std::vector<std::string> statements, names;
      for (const ProgramSection& s : p_.sections) {
        statements.push_back(absl::StrCat("return ", value(s), ";"));
        names.push_back(s.name);
      }
      if (statements.empty()) statements = {"return 0;"}, names = {""};
      Line(absl::StrCat("  EVT_FN int ", name, "(int section) const {"));
      Switch("section", statements, names);
      Line("  }");
    };
    sections("Layers", [](const ProgramSection& s) { return s.layers; });
    sections("FirstGrid", [](const ProgramSection& s) { return s.first_grid; });
    sections("GridCount", [](const ProgramSection& s) { return s.grid_count; });
    OverGrids("bool IsGate(i32 grid)", [](const ProgramGrid& g, int) {
      return absl::StrCat("return ", g.is_gate ? "true" : "false", ";");
    });
    OverGrids("bool DeviceExtent(i32 grid)", [](const ProgramGrid& g, int) {
      return absl::StrCat("return ", g.device_extent ? "true" : "false", ";");
    });
    OverGrids("bool StepKnown(i32 grid)", [](const ProgramGrid& g, int) {
      return absl::StrCat("return ", g.step_known ? "true" : "false", ";");
    });
    OverGrids("i32 NodeIndex(i32 grid)", [](const ProgramGrid& g, int index) {
      return g.node == index ? std::string("return grid;") : absl::StrCat("return ", g.node, ";");
    });
    Line("  EVT_FN const Node& NodeOf(i32 grid) const {");
    Line("    return reinterpret_cast<const Node*>(record.nodes)[NodeIndex(grid)];");
    Line("  }");
    Line("  EVT_FN u32 Policy(i32 grid) const {");
    Line("    return NodeIndex(grid) < 0 ? u32{kPolicyStatic} : NodeOf(grid).policy;");
    Line("  }");
    Line(
        "  // A value another task published: whoever evaluates it has seen the publication fire.");
    Line("  EVT_FN i32 Load(i32 tensor, i32 element) const {");
    Line("    const u64 base = reinterpret_cast<const u64*>(record.published)[tensor];");
    Line("    return static_cast<i32>(");
    Line("        DirectSync::LoadRelaxed(reinterpret_cast<const u32*>(base) + element));");
    Line("  }");
  }

  // An extent below zero is none; where bounds rule it out nothing is printed for it.
  std::string ExtentCpp(const ProgramGrid& grid, const Expr& extent) const {
    const BoundEnv env = {[&](const Expr& leaf) -> Interval {
      switch (leaf.kind()) {
        case ExprKind::kSymbol:
          return {p_.symbols[leaf.index()].min, p_.symbols[leaf.index()].max};
        case ExprKind::kLayer:
          return {0, p_.sections[grid.section].layers - 1};
        case ExprKind::kLoad:
          return {p_.tensors[leaf.index()].min_value, p_.tensors[leaf.index()].max_value};
        default:
          return {INT32_MIN, INT32_MAX};
      }
    }};
    const std::string text = Cpp(extent, kOfGrid);
    return Bound(extent, env).low >= 0 ? text : absl::StrCat("Max(0, ", text, ")");
  }

  void Extents() {
    OverGrids("i32 Extent(const StepView& step, i32 grid, i32 layer, i32 dim)",
              [&](const ProgramGrid& g, int) {
                std::string text = "return ";
                const bool one = std::all_of(g.extents.begin(), g.extents.end(),
                                             [](const Expr& e) { return e.AsConstant() == 1; });
                if (one) return text + "1;";
                for (size_t d = 0; d < g.extents.size(); ++d) {
                  absl::StrAppend(&text, "dim == ", d, " ? ", ExtentCpp(g, g.extents[d]), " : ");
                }
                return absl::StrCat(text, "1;");
              });
    // The sum is outside of the switch: else a compiler keeps layer + base of every grid in registers.
    OverGrids("i32 TicketBase(i32 grid)", [&](const ProgramGrid& g, int) {
      return absl::StrCat("return ", p_.event_elements + g.ticket_base, ";");
    });
    Line("  EVT_FN i32 Ticket(i32 grid, i32 layer) const { return TicketBase(grid) + layer; }");
  }

  std::string Box(const Edge& edge, const Spelling& spelling) const {
    const bool one = std::all_of(edge.index.begin(), edge.index.end(),
                                 [](const IndexRange& r) { return r.single; });
    std::string text = absl::StrCat(one ? "One(" : "Span(", edge.event);
    for (const IndexRange& range : edge.index) {
      const std::string low = Cpp(range.low, spelling);
      if (one) {
        absl::StrAppend(&text, ", ", low);
      } else {
        absl::StrAppend(&text, ", {", low, ", ", Cpp(range.high, spelling), "}");
      }
    }
    return text + ")";
  }

  // For name "WaitBox": Waits(grid) and WaitBox(step, grid, at, i).
  void Boxes(const std::string& name, const char* where, const Spelling& spelling,
             std::vector<Edge> ProgramGrid::*edges) {
    const std::string count = name == "WaitBox"     ? "Waits"
                              : name == "NotifyBox" ? "Notifies"
                                                    : name + "s";
    OverGrids(absl::StrCat("int ", count, "(i32 grid)"), [&](const ProgramGrid& g, int) {
      return absl::StrCat("return ", (g.*edges).size(), ";");
    });
    OverGrids(
        absl::StrCat("ElementBox ", name, "(const StepView& step, i32 grid, ", where, ", int i)"),
        [&](const ProgramGrid& g, int) {
          const std::vector<Edge>& list = g.*edges;
          if (list.empty()) return std::string("return None();");
          std::string text;
          for (size_t i = 0; i + 1 < list.size(); ++i) {
            absl::StrAppend(&text, "if (i == ", i, ") return ", Box(list[i], spelling),
                            ";\n        ");
          }
          return absl::StrCat(text, "return ", Box(list.back(), spelling), ";");
        });
  }

  // A publication that holds for the whole step may be waited for once (device/loop.h keeps one bit
  // per event): its element is the same in all layers, and no grid waits for another element of
  // that event.
  bool IsStepWide(const Edge& edge) const {
    const auto text = [&](const Edge& e) { return Box(e, kOfGrid); };
    const std::string mine = text(edge);
    for (const IndexRange& range : edge.index) {
      if (range.low.HasLayer() || range.high.HasLayer() || range.low.HasLoad() ||
          range.high.HasLoad()) {
        return false;
      }
    }
    for (const ProgramGrid& grid : p_.grids) {
      for (const Edge& other : grid.extent_publications) {
        if (other.event == edge.event && text(other) != mine) return false;
      }
    }
    return true;
  }

  void StepWide() {
    OverGrids("bool StepWide(i32 grid, int i)", [&](const ProgramGrid& g, int) {
      std::vector<std::string> terms;
      for (size_t i = 0; i < g.extent_publications.size(); ++i) {
        if (IsStepWide(g.extent_publications[i])) terms.push_back(absl::StrCat("i == ", i));
      }
      return absl::StrCat("return ", terms.empty() ? "false" : absl::StrJoin(terms, " || "), ";");
    });
  }

  void Events() {
    std::vector<std::string> elements, derived, targets, names;
    for (const ProgramEvent& event : p_.events) {
      std::string text = absl::StrCat("return ", event.base);
      int64_t stride = event.elements;
      for (size_t d = 0; d < event.capacity.size(); ++d) {
        stride = event.capacity[d] == 0 ? 0 : stride / event.capacity[d];
        absl::StrAppend(&text, " + index[", d, "]", stride == 1 ? "" : absl::StrCat(" * ", stride));
      }
      elements.push_back(text + ";");
      targets.push_back(absl::StrCat("return ", Cpp(event.target, kOfElement), ";"));
      derived.push_back(absl::StrCat("return ", Cpp(event.derived, kOfElement), ";"));
      names.push_back(event.name);
    }
    if (elements.empty()) elements = derived = targets = {"return 0;"}, names = {""};
    Line("  // Where an element's counter is in the bank, in elements.");
    Line("  EVT_FN i32 Element(i32 event, const i32* index) const {");
    Switch("event", elements, names);
    Line("  }\n  // Arrivals that the edges of ordinary tasks bring to an element.");
    Line("  EVT_FN i32 Derived(const StepView& step, i32 event, const i32* index) const {");
    Switch("event", derived, names);
    Line("  }\n  // The same, plus a gate's arrival where there are none.");
    Line("  EVT_FN i32 Target(const StepView& step, i32 event, const i32* index) const {");
    Switch("event", targets, names);
    Line("  }");
  }

  // The op's parts: one call site per kind, whatever the number of grids.
  void Parts() {
    Constants();
    OverGrids("bool HasStream(i32 grid)", [&](const ProgramGrid& g, int) {
      return g.kind < 0 ? "return false;" : absl::StrCat("return kHasStream<", OpAndType(g), ">;");
    });
    OverGrids("bool StartsEarly(i32 grid)", [](const ProgramGrid& g, int) {
      return absl::StrCat("return ", !g.is_gate && g.op->starts_early ? "true" : "false", ";");
    });
    for (const char* part : {"Stream", "Input", "Compute"}) {
      Line("  template <class W>");
      OverGrids(
          absl::StrCat("void ", part, "(W& w, const StepView& step, i32 grid, const Coord& at)"),
          [&](const ProgramGrid& g, int) {
            if (g.kind < 0) return std::string("return;");
            return absl::StrCat("return Call", part, "<", OpAndType(g),
                                ">(w, step, NodeOf(grid), at, ", Params(g), ");");
          });
    }
  }

  // Where the op finds its parameters: in the node's record, or in the constant that Constants() prints.
  std::string Params(const ProgramGrid& grid) const {
    if (ConstantParams(grid.kind)) return absl::StrCat("kParams", grid.kind);
    return absl::StrCat("ParamsOf<", OpStructName(grid.op->name), ">(NodeOf(grid))");
  }
  bool ConstantParams(int kind) const {
    if (!p_.kinds[kind].op->constant_params) return false;
    const std::vector<unsigned char>* first = nullptr;
    for (const ProgramGrid& grid : p_.grids) {
      if (grid.kind != kind) continue;
      if (first != nullptr && grid.params != *first) return false;
      first = &grid.params;
    }
    return true;
  }
  void Constants() {
    for (size_t kind = 0; kind < p_.kinds.size(); ++kind) {
      const auto grid = std::find_if(p_.grids.begin(), p_.grids.end(), [&](const ProgramGrid& g) {
        return g.kind == static_cast<int>(kind);
      });
      if (grid == p_.grids.end() || !ConstantParams(static_cast<int>(kind))) continue;
      std::vector<std::string> words;
      for (size_t at = 0; at < grid->params.size(); at += sizeof(u32)) {
        u32 word = 0;
        std::memcpy(&word, grid->params.data() + at, std::min(sizeof(u32), grid->params.size() - at));
        words.push_back(absl::StrCat(word, "u"));
      }
      const std::string type = absl::StrCat(OpStructName(grid->op->name), "::Params");
      Line(absl::StrCat("  // The parameters of ", CommentName(grid->name), ", bit by bit."));
      Line(absl::StrCat("  static constexpr ", type, " kParams", kind, " = __builtin_bit_cast(", type,
                        ", Words<", words.size(), ">{{", absl::StrJoin(words, ", "), "}});"));
    }
  }

  std::string OpAndType(const ProgramGrid& grid) const {
    const ProgramKind& kind = p_.kinds[grid.kind];
    return absl::StrCat(OpStructName(kind.op->name), ", ", VariantTypeName(kind.variant));
  }

  void Dims() {
    Line("  EVT_FN void EvaluateDims(StepView& step) const {");
    for (size_t i = 0; i < p_.dims.size(); ++i) {
      Line(absl::StrCat("    step.dims[", i, "] = ", Cpp(p_.dims[i], kOfGrid), ";"));
    }
    Line("  }");
  }

  void Tail() {
    Line("};\n\n}  // namespace eventide");
    if (target_.entry == CodegenTarget::Entry::kCpu) {
      Line(absl::StrCat("\nextern \"C\" void ", kStepKernel, "(void* worker) {"));
      Line("  auto& w = *static_cast<eventide::CpuWorker<eventide::kCpuPortable>*>(worker);");
      Line("  eventide::RunSequential(eventide::GeneratedProgram{*w.program}, w);\n}");
      return;
    }
    Line("\nextern \"C\" __global__ void __launch_bounds__(eventide::kThreads, 1)");
    // By value: a step costs no copy and no dependent load of its header.
    Line(absl::StrCat("    ", kStepKernel,
                      "(const __grid_constant__ eventide::ProgramRecord program,"));
    Line("                  const __grid_constant__ eventide::StepHeader header) {");
    Line("  eventide::RunWorker<eventide::GeneratedProgram>(program, header);\n}");
  }

  const Program& p_;
  const CodegenTarget& target_;
  std::string out_;
};

}  // namespace

std::string OpStructName(const std::string& op_name) {
  std::string name;
  bool upper = true;
  for (const char c : op_name) {
    EVT_CHECK(std::isalnum(static_cast<unsigned char>(c)) || c == '_');
    if (c != '_') name += upper ? static_cast<char>(std::toupper(c)) : c;
    upper = c == '_';
  }
  return name;
}

const char* VariantTypeName(int variant) {
  constexpr const char* kNames[] = {"BF16", "F16", "float"};
  EVT_CHECK(variant >= 0 && variant < 3);
  return kNames[variant];
}

CodegenTarget TargetOf(const GpuArch& arch, bool timeline) {
  return {arch.header, CodegenTarget::Entry::kCuda, timeline, arch.stream_floor};
}

std::string Codegen(const Program& program, const CodegenTarget& target) {
  return Generator(program, target).Run();
}

}  // namespace eventide
