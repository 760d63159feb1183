"""The questions of two checklists, in our words and by their numbers, with the facts that answer them.

NeurIPS: the paper checklist of 2026, 16 questions (https://neurips.cc/public/guides/PaperChecklist). ACL: the
Responsible NLP Research checklist of ACL Rolling Review as of 2026, A1 to E1
(https://aclrollingreview.org/responsibleNLPresearch).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        number: as the checklist counts.
        asks: what it asks, in short.
        facts: names of the facts that the store has on it (`page.collect_facts`).
        yours: what you have to say.
    """

    number: str
    asks: str
    facts: tuple[str, ...]
    yours: str


@dataclass(frozen=True)
class Checklist:
    """A checklist: its title with the version, the address of its text, and its questions."""

    title: str
    address: str
    questions: tuple[Question, ...]


OUTSIDE = "runs outside of this store (other machines, notebooks, --no-track, fedray verify)"
HUMANS = "if people took part or annotated data; else that it does not apply"

NEURIPS = (
    Question(
        "1", "Do abstract and introduction claim what the paper shows?", ("claims",), "the claims and their scope"
    ),
    Question("2", "Are the limitations discussed?", (), "the limitations"),
    Question(
        "3", "Does each theorem have its assumptions and a proof?", (), "assumptions and proofs, if there are theorems"
    ),
    Question(
        "4",
        "Can the main results be reproduced from what the paper says?",
        ("software", "settings"),
        "how your own classes work, if the sweep names any",
    ),
    Question(
        "5",
        "Are code and data open, with instructions?",
        ("commands", "assets"),
        "where code, archive and data can be found, anonymous for the review",
    ),
    Question(
        "6",
        "Are all details of training and testing given: splits, hyper-parameters and how they were chosen, optimiser?",
        ("data", "model", "search", "settings"),
        "why these ranges, and how data of your own were prepared",
    ),
    Question(
        "7",
        "Are error bars or tests given and defined: what varies, how they are computed, what they assume?",
        ("seeds", "error bars"),
        "the same in the captions of tables and figures",
    ),
    Question(
        "8",
        "Is the compute given: kind of machine, memory, time of each run and of all, also of runs that are not shown?",
        ("hardware", "hours", "runs"),
        f"cluster or cloud, storage, and {OUTSIDE}",
    ),
    Question("9", "Does the research follow the code of ethics?", (), "that you have read it and follow it"),
    Question("10", "Are good and bad effects on society discussed?", (), "the effects, or why there are none"),
    Question("11", "Are there safeguards for what could be misused?", (), "the safeguards, or that nothing needs them"),
    Question("12", "Are owners of code, data and models cited, and licences named?", ("assets",), "the licences"),
    Question("13", "Are new assets documented?", (), "documents and licences of what you publish"),
    Question("14", "Are instructions to participants, and their pay, given?", (), HUMANS),
    Question("15", "Are risks to participants and approval by a review board described?", (), HUMANS),
    Question(
        "16",
        "Is the use of LLMs as a part of the method described?",
        (),
        "how LLMs were used in the method, if they were",
    ),
)

ACL = (
    Question("A1", "Are the limitations described?", (), "the limitations"),
    Question("A2", "Are risks discussed?", (), "the risks"),
    Question("B1", "Are the creators of code, data and models cited?", ("assets",), "the citations"),
    Question("B2", "Are licences and terms of use given?", ("assets",), "the licences"),
    Question("B3", "Is the use what the artefacts were made for?", (), "the intended use of data and models"),
    Question(
        "B4", "Were data checked for names and offensive content?", (), "the checks, and how data were anonymised"
    ),
    Question(
        "B5", "Are the artefacts documented: domains, languages, groups?", (), "languages and domains of the data"
    ),
    Question(
        "B6", "Are sizes and splits of the data given?", ("data",), "how data of your own were split, if a file says it"
    ),
    Question(
        "C1",
        "Are parameters, the whole compute and the machines given?",
        ("model", "hours", "hardware", "runs"),
        OUTSIDE,
    ),
    Question(
        "C2",
        "Are the set-up, the search for hyper-parameters and the best values given?",
        ("search", "settings", "seeds"),
        "why these ranges",
    ),
    Question(
        "C3",
        "Are statistics of the results given, and is it clear what each number is?",
        ("error bars", "seeds", "runs"),
        "the same in the captions of tables and figures",
    ),
    Question(
        "C4",
        "Are the packages with their versions and settings given?",
        ("software",),
        "packages used outside of fedray",
    ),
    Question("D1", "Are the instructions to participants given?", (), HUMANS),
    Question("D2", "Are recruiting and pay of participants described?", (), HUMANS),
    Question("D3", "Was consent obtained?", (), HUMANS),
    Question("D4", "Did a review board approve the collection of data?", (), HUMANS),
    Question("D5", "Are the annotators' demographics reported?", (), HUMANS),
    Question(
        "E1", "Is the use of AI assistants described?", (), "where AI assistants were used in research, code or text"
    ),
)

CHECKLISTS = {
    "neurips": Checklist("NeurIPS 2026 paper checklist", "https://neurips.cc/public/guides/PaperChecklist", NEURIPS),
    "acl": Checklist(
        "ACL Responsible NLP Research checklist (ACL Rolling Review, 2026)",
        "https://aclrollingreview.org/responsibleNLPresearch",
        ACL,
    ),
}
