"""The app's server, whose pages `hostile_app.py` draws. Streamlit starts this file."""

from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from ui.app.this_machine import ThisMachineOnly

app = st.App(Path(__file__).with_name("hostile_app.py"), middleware=[Middleware(ThisMachineOnly)])
