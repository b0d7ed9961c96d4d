"""Every path in a JVM with the options of conf/: `every_path ENDPOINT FOLDER N`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sbp_core.client import Client
from tests.support.data.every_path import check_every_path
from tests.support.spark import CONF, Sbp, spark_session

DEFAULTS = Path(__file__).parents[3] / "conf" / "spark-defaults.conf"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def main(endpoint: str, folder: Path, examples: int) -> None:
    text = DEFAULTS.read_text(encoding="utf-8")
    (given,) = re.findall(rf"^{re.escape(JAVA_OPTIONS)}\s+(.+)$", text, re.MULTILINE)
    conf = {JAVA_OPTIONS: f"{CONF[JAVA_OPTIONS]} {given}"}
    with spark_session(folder, conf=conf) as spark, Client(endpoint) as client:
        print(check_every_path(Sbp(spark, endpoint), client, folder, examples))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
