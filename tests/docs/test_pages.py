import pytest

from tests.docs.pages import Directive, PageFault, parse

PAGE = """\
# A `page` & its parts

<!-- test: daemon -->

Text with [a link](other.md#part) and ![a picture](picture.svg), <a id="here"></a> and <a href="x.md">another</a>.

<!-- test: needs torch numpy -->
<!-- test: copy examples/a.py -->

```python title="agent.py" hl_lines="2"
import torch
```

- In a list:

  ```console
  $ ls
  ```

~~~text
plain
~~~
"""


def test_blocks_stand_in_order_with_their_titles_lines_and_comments():
    page = parse(PAGE)
    assert [(block.language, block.title, block.line) for block in page.blocks] == [
        ("python", "agent.py", 10),
        ("console", "", 16),
        ("text", "", 20),
    ]
    assert page.blocks[0].before == (
        Directive("needs", ("torch", "numpy")),
        Directive("copy", ("examples/a.py",)),
    )
    assert page.blocks[0].of("needs") == ["torch", "numpy"]
    assert page.blocks[1].of("needs") is None
    assert page.blocks[1].content == "$ ls\n"


def test_links_anchors_and_comments_of_the_page():
    page = parse(PAGE)
    assert page.directives == {"daemon"}
    assert [link for _, link in page.links] == ["other.md#part", "picture.svg", "x.md"]
    assert page.anchors_on_github() == {"a-page--its-parts", "here"}
    assert page.anchors_on_the_site() == {"a-page-its-parts", "here"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 1\n", "is not closed"),
        ("!!! note\n\n    ```python\n    x = 1\n    ```\n", "an indented fence"),
        ("<!-- test: skipped -->\n```python\n```\n", "unknown '<!-- test: skipped'"),
        ("<!-- test: skip -->\n```python\n```\n", "says nothing more"),
        ("<!-- test skip -->\n```python\n```\n", "on one line"),
        ("<!-- test: skip it\nall -->\n```python\n```\n", "on one line"),
        ("<!-- test: skip a reason -->\n\nText.\n", "stands directly before a block"),
        ("<!-- test: skip a reason -->\n", "stands directly before a block"),
        ("```text\n```\n<!-- test: daemon -->\n```python\n```\n", "at the page's top"),
        ("```python title=agent.py\n```\n", 'title="FILE"'),
    ],
)
def test_a_slip_is_a_fault(text, fault):
    with pytest.raises(PageFault, match=fault):
        parse(text)
