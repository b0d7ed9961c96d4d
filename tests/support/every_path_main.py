"""Every path in a JVM with the options of conf/: `python every_path_main.py ENDPOINT FOLDER N`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from every_path import check_every_path
from spark_session import CONF, spark_session
from spark_streams import Sbp

from sbp_core.client import Client

DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def main(endpoint: str, folder: Path, examples: int) -> None:
    text = DEFAULTS.read_text(encoding="utf-8")
    (given,) = re.findall(rf"^{re.escape(JAVA_OPTIONS)}\s+(.+)$", text, re.MULTILINE)
    conf = {JAVA_OPTIONS: f"{CONF[JAVA_OPTIONS]} {given}"}
    with spark_session(folder, conf=conf) as spark, Client(endpoint) as client:
        print(check_every_path(Sbp(spark, endpoint), client, folder, examples))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
